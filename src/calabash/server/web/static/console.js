// What the pages do beyond links and forms: colours, questions before what cannot be undone, keys, and pausing of live parts.
(function () {
  "use strict";
  var root = document.documentElement;

  function dark() {
    var said = root.dataset.theme;
    return said ? said === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  document.addEventListener("click", function (event) {
    var target = event.target instanceof Element ? event.target : null;
    if (!target) return;
    if (target.closest("#theme")) {
      root.dataset.theme = dark() ? "light" : "dark";
      try { localStorage.setItem("calabash-theme", root.dataset.theme); } catch (error) { /* for this page only */ }
      document.dispatchEvent(new CustomEvent("calabash:theme"));
    }
    var opener = target.closest("[data-dialog]");
    if (opener) {
      var dialog = document.getElementById(opener.dataset.dialog);
      if (dialog) { event.preventDefault(); dialog.showModal(); }
    }
    if (target.closest("[data-close]")) {
      event.preventDefault();
      target.closest("dialog").close();
    }
    var row = target.closest("tr[data-href]");
    if (row && !target.closest("a, button, input, select, summary") && !String(getSelection())) location.href = row.dataset.href;
  });

  document.addEventListener("submit", function (event) {
    var form = event.target;
    var asked = form.dataset.confirm;
    if (asked && !confirm(asked)) { event.preventDefault(); return; }
    // An empty field says nothing: it is left out of the URL of a list.
    if (form.method === "get") form.querySelectorAll("input, select").forEach(function (field) { field.disabled = field.value === ""; });
    else form.querySelectorAll("button[type=submit], button:not([type])").forEach(function (button) { setTimeout(function () { button.disabled = true; }, 0); });
  });
  addEventListener("pageshow", function () {
    document.querySelectorAll("form :disabled:not([data-refused])").forEach(function (field) { field.disabled = false; });
  });

  document.addEventListener("change", function (event) {
    var field = event.target;
    if (field.matches && field.matches("form.filter select")) field.form.requestSubmit();
  });

  // g then a letter goes to a page; / goes to the filter; ? shows the keys.
  var waiting = false;
  document.addEventListener("keydown", function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog[open]")) return;
    if (waiting) {
      waiting = false;
      var link = document.querySelector('nav a[data-key="' + CSS.escape(event.key) + '"]');
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    if (event.key === "g") { waiting = true; setTimeout(function () { waiting = false; }, 1500); }
    if (event.key === "/") {
      var filter = document.querySelector("form.filter input");
      if (filter) { event.preventDefault(); filter.focus(); filter.select(); }
    }
    if (event.key === "?") { var help = document.getElementById("keys"); if (help) help.showModal(); }
  });

  // A live part stands still while nobody looks, while something in it is open, and while text is marked.
  // What is wider than its place can be scrolled with the keyboard, too.
  function scrollable() {
    document.querySelectorAll(".scroll").forEach(function (place) {
      if (place.scrollWidth > place.clientWidth) place.tabIndex = 0;
      else place.removeAttribute("tabindex");
    });
  }
  document.addEventListener("DOMContentLoaded", scrollable);
  document.addEventListener("htmx:afterSettle", scrollable);
  addEventListener("resize", scrollable);
  if (document.readyState !== "loading") scrollable();

  document.addEventListener("htmx:beforeRequest", function (event) {
    var part = event.detail.elt;
    if (!part.matches || !part.matches("[data-live]")) return;
    var marked = getSelection();
    if (document.hidden || document.querySelector("dialog[open]") || part.querySelector("details[open]") ||
        (marked && !marked.isCollapsed && part.contains(marked.anchorNode))) event.preventDefault();
  });
})();
