// Navigation: page contents are requested with the session and swapped into the document. Links and forms do not leave the document, so
// an open page shows only replies that its gateway has authenticated. Also: colour theme, confirmations, keyboard shortcuts.
(function () {
  "use strict";
  var root = document.documentElement;
  var visits = 0; // the latest counts

  // -- pages -----------------------------------------------------------------------------------------------------

  function here() {
    return location.pathname + location.search;
  }

  function note(failure) {
    var old = document.getElementById("failure");
    if (old) old.remove();
    var made = document.createElement("div");
    made.id = "failure";
    made.className = "note bad";
    made.setAttribute("role", "alert");
    made.append(failure.message || String(failure));
    if (failure.hint) {
      var hint = document.createElement("span");
      hint.className = "hint";
      hint.textContent = failure.hint;
      made.append(document.createElement("br"), hint);
    }
    if (failure.status === 401) {
      var link = document.createElement("a");
      link.href = "/login?next=" + encodeURIComponent(here());
      link.textContent = "Log in";
      made.append(document.createElement("br"), link);
    }
    document.getElementById("main").prepend(made);
  }

  // Styles and scripts of the page that this document does not have yet.
  function bring(head) {
    return Promise.all(Array.from(head.querySelectorAll("link[rel=stylesheet][href], script[src]"), function (wanted) {
      var name = wanted.tagName === "LINK" ? "href" : "src";
      var url = new URL(wanted.getAttribute(name), location.href);
      var there = Array.from(document.head.querySelectorAll(wanted.tagName)).some(function (known) {
        return (known.getAttribute(name) || "").split("/").pop() === url.pathname.split("/").pop();
      });
      if (there || url.origin !== location.origin) return null;
      var made = document.createElement(wanted.tagName);
      if (name === "href") made.rel = "stylesheet";
      else made.async = false;
      made[name] = url.href;
      return new Promise(function (resolve) {
        made.onload = made.onerror = resolve;
        document.head.append(made);
      });
    }));
  }

  function save(answer, name) {
    var link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([answer.content], { type: answer.type }));
    link.download = name;
    link.click();
    setTimeout(function () { URL.revokeObjectURL(link.href); }, 60000);
  }

  function parsed(answer) {
    var words = new TextDecoder().decode(answer.content);
    if (answer.type.startsWith("text/html")) return new DOMParser().parseFromString(words, "text/html");
    var made = document.implementation.createHTMLDocument(document.title);
    var main = made.createElement("main");
    main.id = "main";
    main.append(made.createElement("pre"));
    main.firstChild.textContent = words;
    made.body.append(main);
    return made;
  }

  async function show(answer) {
    var page = parsed(answer);
    await bring(page.head);
    document.title = page.title;
    document.body.replaceWith(document.importNode(page.body, true));
    performance.mark("calabash:shown");
    document.dispatchEvent(new CustomEvent("calabash:shown"));
  }

  // Request a page, or send a form and request the page after it, and show it. ``options.kept``: do not change the address.
  async function visit(target, options) {
    options = options || {};
    var mine = ++visits;
    root.dataset.state = "busy";
    try {
      var url = new URL(target, location.href);
      var answer = await calabash.ask(url.pathname + url.search, options);
      if (answer.location) {
        url = new URL(answer.location, location.href);
        if (url.pathname === "/login") {
          await calabash.end();
          location.assign(answer.location);
          return;
        }
        answer = await calabash.ask(url.pathname + url.search);
      } else if (options.method === "POST") url = new URL(location.href);
      if (mine !== visits) return;
      await show(answer);
      root.removeAttribute("data-shell");
      var shown = url.pathname + url.search + url.hash;
      if (!options.kept) history[url.href === location.href ? "replaceState" : "pushState"](null, "", shown);
      var place = url.hash && document.getElementById(decodeURIComponent(url.hash.slice(1)));
      if (place) place.scrollIntoView();
      else if (!options.kept) scrollTo(0, 0);
    } catch (failure) {
      if (mine !== visits) return;
      if (failure.status === 401 && root.hasAttribute("data-shell")) {
        location.replace("/login?next=" + encodeURIComponent(here()).replaceAll("%2F", "/"));
        return;
      }
      note(failure);
      document.querySelectorAll("form :disabled").forEach(function (field) { field.disabled = false; });
    }
    root.dataset.state = "ready";
  }

  async function download(target, name) {
    root.dataset.state = "busy";
    try { save(await calabash.ask(target, { accept: "*/*" }), name); } catch (failure) { note(failure); }
    root.dataset.state = "ready";
  }

  addEventListener("popstate", function () { visit(location.href, { kept: true }); });

  // -- live parts: refreshed periodically, except while the page is hidden, a part is open, or text is selected ---------

  function still(part) {
    var marked = getSelection();
    return document.hidden || root.dataset.state === "busy" || document.querySelector("dialog[open]") ||
      part.querySelector("details[open]") || (marked && !marked.isCollapsed && part.contains(marked.anchorNode));
  }

  async function refresh(part) {
    var mine = visits;
    try {
      var answer = await calabash.ask(here(), { live: true });
      var fresh = answer.status < 400 && parsed(answer).getElementById(part.id);
      if (mine !== visits || !part.isConnected) return;
      var failed = document.getElementById("failure");
      if (failed) failed.remove();
      if (!fresh || still(part)) return;
      var focused = part.contains(document.activeElement) ? document.activeElement.id : "";
      part.replaceWith(document.importNode(fresh, true));
      if (focused && document.getElementById(focused)) document.getElementById(focused).focus({ preventScroll: true });
      scrollable();
    } catch (failure) {
      if (mine === visits && part.isConnected) note(failure);
    }
  }

  (async function keepFresh() {
    for (;;) {
      var part = document.querySelector("[data-live]");
      await new Promise(function (resolve) { setTimeout(resolve, 1000 * (part ? Number(part.dataset.live) : 1)); });
      if (part && part.isConnected && !still(part)) await refresh(part);
    }
  })();

  // -- clicks -------------------------------------------------------------------------------------------

  function dark() {
    var said = root.dataset.theme;
    return said ? said === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  // Return true for a page of the console that is shown in this document, not a login page or a static file.
  function ours(url) {
    return url.origin === location.origin && !/^\/(login|static|v1)(\/|$)/.test(url.pathname);
  }

  function follow(event, link) {
    var url = new URL(link.getAttribute("href"), location.href);
    if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey || link.hasAttribute("target")) return;
    if (!ours(url) || (url.hash && url.pathname + url.search === here())) return;
    event.preventDefault();
    if (link.hasAttribute("download")) download(url.pathname + url.search, link.getAttribute("download"));
    else visit(url.href);
  }

  document.addEventListener("click", function (event) {
    var target = event.target instanceof Element ? event.target : null;
    if (!target || event.defaultPrevented) return;
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
    var link = target.closest("a[href]");
    if (link) { follow(event, link); return; }
    var row = target.closest("tr[data-href]");
    if (row && !target.closest("button, input, select, summary") && !String(getSelection())) visit(row.dataset.href);
  });

  document.addEventListener("submit", function (event) {
    var form = event.target;
    if (form.method === "dialog") return;
    event.preventDefault();
    if (form.dataset.confirm && !confirm(form.dataset.confirm)) return;
    var fields = new URLSearchParams(new FormData(form, event.submitter));
    var url = new URL(form.getAttribute("action") || location.pathname, location.href);
    if (form.method === "post") {
      form.querySelectorAll("button").forEach(function (button) { button.disabled = true; });
      visit(url.href, { method: "POST", body: fields.toString() });
      return;
    }
    // Omit empty fields from the URL of a list.
    var said = Array.from(fields).filter(function (field) { return field[1] !== ""; });
    url.search = new URLSearchParams(said).toString();
    visit(url.href);
  });

  document.addEventListener("change", function (event) {
    var field = event.target;
    if (field.matches && field.matches("form.filter select")) field.form.requestSubmit();
  });

  // g then a letter goes to a page; / focuses the filter; ? shows the shortcuts.
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

  // Make elements that overflow scrollable with the keyboard.
  function scrollable() {
    document.querySelectorAll(".scroll").forEach(function (place) {
      if (place.scrollWidth > place.clientWidth) place.tabIndex = 0;
      else place.removeAttribute("tabindex");
    });
  }
  document.addEventListener("calabash:shown", scrollable);
  addEventListener("resize", scrollable);
  scrollable();

  if (root.hasAttribute("data-shell")) visit(location.href, { kept: true });
})();
