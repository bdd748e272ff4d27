// Session of the page: its key, signed requests and verified replies. See calabash.gateway.sessions.store.
//
// The key is in the storage of this origin, which includes the port, and no script can read it. Headers that a browser adds by
// itself grant no rights. A reply without a valid proof is not shown, because another program may have taken the port.
(function () {
  "use strict";
  var LIFE_OF_ATTEMPT = "calabash-attempt";
  var text = new TextEncoder();
  var clock = null; // {start, offset}: which gateway answers, and its time less that of this page

  function hear(said) {
    var parts = String(said || "").split(" ");
    if (parts.length === 2) clock = { start: parts[0], offset: Number(parts[1]) - performance.now() };
  }
  hear(document.querySelector("meta[name=calabash-clock]") && document.querySelector("meta[name=calabash-clock]").content);

  function hex(bytes) {
    return Array.from(new Uint8Array(bytes), function (byte) { return byte.toString(16).padStart(2, "0"); }).join("");
  }
  function unhex(shown) {
    return Uint8Array.from(shown.match(/../g) || [], function (pair) { return parseInt(pair, 16); });
  }
  async function digest(bytes) {
    return hex(await crypto.subtle.digest("SHA-256", bytes));
  }

  // -- the key, kept in IndexedDB: structured cloning keeps it unreadable ------------------------------------------

  function kept(mode, act) {
    return new Promise(function (resolve, reject) {
      var opening = indexedDB.open("calabash", 1);
      opening.onupgradeneeded = function () { opening.result.createObjectStore("session"); };
      opening.onerror = function () { reject(opening.error); };
      opening.onsuccess = function () {
        var change = opening.result.transaction("session", mode);
        var asked = act(change.objectStore("session"));
        change.oncomplete = function () { opening.result.close(); resolve(asked.result); };
        change.onabort = change.onerror = function () { opening.result.close(); reject(change.error); };
      };
    });
  }
  function current() {
    return kept("readonly", function (store) { return store.get("current"); });
  }
  async function begin(begun) {
    var bytes = Uint8Array.from(atob(begun.key), function (letter) { return letter.charCodeAt(0); });
    var key = await crypto.subtle.importKey("raw", bytes, { name: "HMAC", hash: "SHA-256" }, false, ["sign", "verify"]);
    await kept("readwrite", function (store) { return store.put({ id: begun.session, key: key }, "current"); });
  }
  function end() {
    return kept("readwrite", function (store) { return store.delete("current"); });
  }

  // -- requests ------------------------------------------------------------------------------------------------

  function Failure(status, message, hint) {
    this.status = status; // 0: nobody answers, or not the gateway of this session
    this.message = message;
    this.hint = hint || "";
  }
  function told(status) {
    if (status === 401) return new Failure(401, "You are not logged in", "The pool was restarted, or the session has ended. Log in with a link of calabash login-link.");
    if (status === 429) return new Failure(429, "Too many requests", "Wait a moment, then try again.");
    return new Failure(status, "The console does not answer", "The page is shown again when the pool runs: calabash up");
  }

  async function signed(session, method, target, body, nonce) {
    var at = Math.max(0, Math.floor(performance.now() + clock.offset));
    var parts = ["calabash request", clock.start, method, location.host, target, at, nonce, await digest(body)];
    return at + "." + nonce + "." + hex(await crypto.subtle.sign("HMAC", session.key, text.encode(parts.join("\n"))));
  }

  // The reply to a request of this session: {status, type, location, content}. Throws Failure.
  async function ask(target, options, again) {
    options = options || {};
    var url = new URL(target, location.href);
    target = url.pathname + url.search;
    var session = await current();
    if (!session || !clock) throw told(401);
    var method = options.method || "GET";
    var body = text.encode(options.body || "");
    var nonce = hex(crypto.getRandomValues(new Uint8Array(16)));
    var headers = {
      "Accept": options.accept || "text/html", "Calabash-Session": session.id,
      "Calabash-Proof": await signed(session, method, target, body, nonce)
    };
    if (options.live) headers["Calabash-Live"] = "1";
    if (method !== "GET") headers["Content-Type"] = "application/x-www-form-urlencoded";
    var answer, content;
    try {
      answer = await fetch(target, {
        method: method, headers: headers, body: method === "GET" ? undefined : body, cache: "no-store",
        credentials: "omit", redirect: "error"
      });
      content = await answer.arrayBuffer();
    } catch (error) { throw told(0); }
    var type = answer.headers.get("Content-Type") || "";
    var to = answer.headers.get("Calabash-Location") || "";
    var parts = ["calabash reply", nonce, answer.status, type, to, await digest(content)];
    var proof = unhex(answer.headers.get("Calabash-Proof") || "");
    if (!await crypto.subtle.verify("HMAC", session.key, proof, text.encode(parts.join("\n")))) {
      if (answer.status === 401 && !again && answer.headers.get("Calabash-Clock")) {
        hear(answer.headers.get("Calabash-Clock"));
        return ask(target, options, true);
      }
      throw told(answer.status === 401 || answer.status === 429 ? answer.status : 0);
    }
    if (answer.status === 401) throw told(401);
    return { status: answer.status, type: type, location: to, content: content };
  }

  // -- logging in ------------------------------------------------------------------------------------------------

  // Return the reply of the gateway to a request without a session. Throws Failure.
  async function send(target, order) {
    if (!isSecureContext || !crypto.subtle)
      throw new Failure(0, "The console requires HTTPS or a local connection", "Open it with https://, or through an SSH tunnel to 127.0.0.1.");
    var answer, said;
    try {
      answer = await fetch(target, {
        method: "POST", body: JSON.stringify(order), credentials: "omit", cache: "no-store", redirect: "error",
        headers: { "Content-Type": "application/json", "Accept": "application/json" }
      });
      said = await answer.json();
    } catch (error) { throw told(0); }
    if (!answer.ok) throw new Failure(answer.status, said.message, said.hint);
    return said;
  }

  window.calabash = Object.freeze({
    ask: ask, begin: begin, current: current, end: end, send: send, Failure: Failure, attempt: LIFE_OF_ATTEMPT
  });
})();
