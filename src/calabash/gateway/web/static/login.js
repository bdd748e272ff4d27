// Log in with the code of a login link, or with an OIDC provider. The code is the fragment of the address; it is sent only to
// exchange it for a session.
(function () {
  "use strict";
  var asked = new URLSearchParams(location.search);

  function local(path) {
    return path && path.startsWith("/") && !path.startsWith("//") && !path.includes("\\") ? path : "/";
  }
  function fail(failure) {
    var old = document.querySelector("[role=alert]");
    if (old) old.remove();
    var note = document.createElement("div");
    note.className = "note bad";
    note.setAttribute("role", "alert");
    note.append(failure.message || "It failed");
    if (failure.hint) {
      var hint = document.createElement("span");
      hint.className = "hint";
      hint.textContent = failure.hint;
      note.append(document.createElement("br"), hint);
    }
    var place = document.querySelector("#code") || document.querySelector("main .card");
    place.prepend(note);
    document.querySelectorAll("button").forEach(function (button) { button.disabled = false; });
    document.documentElement.dataset.state = "ready";
  }
  async function enter(begun, to) {
    await calabash.begin(begun);
    location.replace(local(to));
  }
  function trying(work) {
    document.documentElement.dataset.state = "busy";
    work().catch(fail);
  }

  var form = document.querySelector("form#code");
  if (form) {
    form.addEventListener("submit", function (event) {
      event.preventDefault();
      form.querySelector("button").disabled = true;
      trying(async function () { await enter(await calabash.send("/login", { code: form.elements.code.value }), asked.get("next")); });
    });
    var code = decodeURIComponent(location.hash.replace(/^#(code=)?/, ""));
    if (code) {
      history.replaceState(null, "", location.pathname + location.search);
      form.elements.code.value = code;
      form.requestSubmit();
    }
  }

  var provider = document.querySelector("a#oidc");
  if (provider) provider.addEventListener("click", function (event) {
    event.preventDefault();
    trying(async function () {
      var begun = await calabash.send("/login/oidc", { to: local(asked.get("next")) });
      sessionStorage.setItem(calabash.attempt, begun.ticket);
      location.assign(begun.url);
    });
  });

  if (document.querySelector("#entering")) trying(async function () {
    var ticket = sessionStorage.getItem(calabash.attempt) || "";
    sessionStorage.removeItem(calabash.attempt);
    history.replaceState(null, "", location.pathname);
    var begun = await calabash.send("/login/oidc/session", { ticket: ticket, query: Object.fromEntries(asked) });
    await enter(begun, begun.to);
  });
})();
