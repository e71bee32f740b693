"use strict";
// Draws the charts that the page holds and switches between light and dark.
(function () {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  function theme() { root.dataset.theme = chosen || (dark.matches ? "dark" : "light"); }
  theme();
  dark.addEventListener("change", theme);
  const button = document.getElementById("theme");
  if (button) button.addEventListener("click", function () {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    theme();
  });
  let drawn = [];
  function draw(specs) {
    drawn.forEach(function (result) { result.finalize(); });
    drawn = [];
    const places = Array.from(document.querySelectorAll("[data-chart]"));
    return Promise.all(places.map(function (place) {
      const options = { renderer: "svg", actions: false, ast: true, tooltip: { theme: "custom" } };
      return vegaEmbed(place, specs[place.dataset.chart], options).then(function (result) {
        drawn.push(result);
        place.dataset.drawn = "yes";
      });
    })).then(function () { root.dataset.drawn = String(places.length); });
  }
  window.addEventListener("beforeprint", function () {  // paper cannot be unfolded
    document.querySelectorAll("section > details").forEach(function (folded) {
      if (!folded.open) { folded.open = true; folded.dataset.printed = "yes"; }
    });
  });
  window.addEventListener("afterprint", function () {
    document.querySelectorAll("[data-printed]").forEach(function (unfolded) {
      unfolded.open = false;
      delete unfolded.dataset.printed;
    });
  });
  window.planner = { draw: draw };
  const held = document.getElementById("charts");
  if (held) draw(JSON.parse(held.textContent));
})();
