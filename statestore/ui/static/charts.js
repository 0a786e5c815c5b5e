// Draws the charts of the last hours with uPlot: values under the pointer, the same place in all of
// them, and a part of the span by dragging. The page brings the numbers in #work, time after time.
"use strict";

(() => {
  const PHASES = ["restore", "poll", "process", "commit"];
  const tall = () => (innerWidth < 740 ? 150 : 190);
  const plots = new Map();
  let drawn = "";

  const colour = (name) => () =>
    getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const faded = (name) => () => `${colour(name)()}33`;
  const long = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
  const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
  const said = (value, unit) => (value == null ? "–" : `${long.format(value)}${unit}`);
  const moment = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);

  const options = (holder, series) => ({
    width: holder.clientWidth,
    height: tall(),
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    cursor: { sync: { key: "work" }, y: false, points: { size: 6 } },
    legend: { live: true, markers: { width: 0 } },
    scales: { x: { time: true }, y: { range: (_, _min, max) => [0, max > 0 ? max * 1.08 : 1] } },
    axes: ["x", "y"].map((scale) => ({
      scale,
      stroke: colour("faint"),
      grid: { stroke: colour("line"), width: 1 },
      ticks: { stroke: colour("line"), width: 1, size: 4 },
      font: "11px system-ui, sans-serif",
      space: scale === "x" ? 60 : 32,
      size: scale === "x" ? 30 : 52,
      ...(scale === "x"
        ? { values: [
            [86400, "{MMM} {D}", null, null, null, null, null, null, 1],
            [60, "{HH}:{mm}", null, null, null, null, null, null, 1],
            [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1],
          ] }
        : { values: (_, splits) => splits.map((value) => short.format(value)) }),
    })),
    series: [{ label: "", value: (_, at) => (at == null ? "" : moment(at)) }, ...series],
  });

  const lineOf = (label, name, unit) => [{
    label, stroke: colour(name), fill: faded(name), width: 1.5, spanGaps: false,
    value: (_, value) => said(value, unit),
  }];

  // Each phase stands on those before it, so that the upper edge is their sum.
  const stacked = (phases) => {
    const below = phases[PHASES[0]].map(() => 0);
    return PHASES.map((name) => phases[name].map((value, at) => (below[at] += value)));
  };
  const phaseSeries = (phases) => PHASES.map((name) => ({
    label: name, stroke: colour(name), fill: colour(name), width: 0, points: { show: false },
    value: (_, _value, _series, at) => said(at == null ? null : phases()[name][at], ""),
  }));

  // Shows all of the span, as a double click does.
  const whole = (plot) => plot.setScale("x", { min: plot.whole.begin, max: plot.whole.end });

  const show = (name, data, columns, series) => {
    const figure = document.getElementById(`chart-${name}`);
    const holder = figure.querySelector(".plot");
    figure.classList.toggle("quiet", !columns.length);
    holder.hidden = !columns.length;
    const before = plots.get(name);
    if (!columns.length) {
      if (before) before.plot.destroy();
      plots.delete(name);
      return;
    }
    const values = [data.times, ...columns];
    if (!before) {
      const plot = new uPlot(options(holder, series), values, holder);
      plots.set(name, { plot, holder });
      plot.whole = { begin: data.begin, end: data.end };
      whole(plot);
      return;
    }
    const { plot } = before;
    const zoomed = plot.scales.x.min > plot.whole.begin || plot.scales.x.max < plot.whole.end;
    const same = data.end - data.begin === plot.whole.end - plot.whole.begin;
    plot.whole = { begin: data.begin, end: data.end };
    plot.setData(values, false);
    if (zoomed && same) plot.redraw();
    else whole(plot);
  };

  let phases = {};
  const draw = () => {
    const charts = document.getElementById("charts");
    const text = document.getElementById("work")?.dataset.charts ?? "";
    if (!charts || (text === drawn && (plots.size === 0 || charts.querySelector(".uplot")))) return;
    if (!charts.querySelector(".uplot")) plots.clear();
    drawn = text;
    charts.hidden = !text;
    if (!text) return;
    const data = JSON.parse(text);
    phases = data.phases;
    const busy = PHASES.some((name) => phases[name].some((value) => value > 0));
    charts.querySelector("#chart-rate small").textContent = data.rate_told;
    charts.querySelector("#chart-lag small").textContent = data.lag_told;
    charts.querySelector("#chart-phases small").textContent = data.phases_told;
    show("rate", data, [data.rate], lineOf("Records", "process", " a second"));
    show("lag", data, data.lag.length ? [data.lag] : [], lineOf("Records", "lag", " behind"));
    // uPlot fills from the upper edge to zero, so the highest one is drawn first.
    const tops = busy ? stacked(phases).reverse() : [];
    show("phases", data, tops, phaseSeries(() => phases).reverse());
  };

  const resized = () => {
    for (const { plot, holder } of plots.values()) {
      plot.setSize({ width: holder.clientWidth, height: tall() });
    }
  };
  addEventListener("resize", resized);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const { plot } of plots.values()) plot.redraw(false, true);
  });
  document.addEventListener("dblclick", (event) => {
    if (!event.target.closest("#charts")) return;
    for (const { plot } of plots.values()) whole(plot);
  });
  document.addEventListener("htmx:afterSettle", draw);
  draw();
})();
