// Set the theme before the first paint, so that the page does not flash in the other colours.
(function () {
  "use strict";
  var theme = null;
  try { theme = localStorage.getItem("calabash-theme"); } catch (error) { /* storage is switched off */ }
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
})();
