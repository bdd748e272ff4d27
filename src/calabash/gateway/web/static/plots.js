// Draw each <figure class="plot" data-src="..."> with uPlot. The address in data-src returns the series:
// {"times": [seconds], "series": [{"name": "...", "unit": "...", "values": [...]}]}. The table on the page has the same values.
(function () {
  "use strict";
  function colours(count) {
    // A canvas does not support light-dark(), so an element resolves the colour.
    var probe = document.body.appendChild(document.createElement("i"));
    function resolved(name) {
      probe.style.color = "var(" + name + ")";
      return getComputedStyle(probe).color;
    }
    var found = [];
    for (var i = 0; i < count; i++) found.push(resolved("--hue-" + ((i % 8) + 1)));
    var answer = { series: found, text: resolved("--muted"), grid: resolved("--line") };
    probe.remove();
    return answer;
  }
  function draw(figure, answer) {
    var old = figure.querySelector(".uplot");
    if (old) old.remove();
    if (!answer.times.length) return;
    var colour = colours(answer.series.length);
    var axis = { stroke: colour.text, grid: { stroke: colour.grid, width: 1 }, ticks: { stroke: colour.grid, width: 1 } };
    new uPlot({
      width: figure.clientWidth, height: 220, cursor: { y: false },
      axes: [axis, axis],
      scales: { y: { range: function (_, low, high) { return [Math.min(0, low), high > 0 ? high * 1.05 : 1]; } } },
      series: [{}].concat(answer.series.map(function (line, i) {
        return { label: line.name || "-", stroke: colour.series[i], width: 2, points: { show: answer.times.length < 3 } };
      }))
    }, [answer.times].concat(answer.series.map(function (line) { return line.values; })), figure);
  }
  function drawAll() {
    document.querySelectorAll("figure.plot[data-src]").forEach(async function (figure) {
      try {
        var answer = await calabash.ask(figure.dataset.src, { accept: "application/json" });
        if (answer.status !== 200) throw new Error(String(answer.status));
        drawn.set(figure, JSON.parse(new TextDecoder().decode(answer.content)));
        draw(figure, drawn.get(figure));
      } catch (failure) { figure.append("The plot could not be loaded; see the table for the values."); }
    });
  }
  function drawAgain() {
    document.querySelectorAll("figure.plot[data-src]").forEach(function (figure) {
      if (drawn.has(figure)) draw(figure, drawn.get(figure));
    });
  }
  var drawn = new WeakMap();
  document.addEventListener("calabash:shown", drawAll);
  document.addEventListener("calabash:theme", drawAgain);
  addEventListener("resize", drawAgain);
})();
