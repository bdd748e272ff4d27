// A login link carries its code behind the #, which browsers send to nobody. It is taken out of the address at once.
(function () {
  "use strict";
  var code = decodeURIComponent(location.hash.replace(/^#(code=)?/, ""));
  if (!code) return;
  history.replaceState(null, "", location.pathname + location.search);
  var field = document.querySelector("input[name=code]");
  field.value = code;
  field.form.requestSubmit();
})();
