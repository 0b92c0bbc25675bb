// Charts over steps or time, drawn by uPlot. The caller describes the series; the theme sets colors, the parent element
// sets the size. app.js supplies the values.
"use strict";

const Format = {
  count: (n) => (n == null ? "–" : Math.round(n).toLocaleString("en-US")),
  bytes(n) {
    if (n == null) return "–";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (Math.abs(n) >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
    return `${unit === 0 ? n : n.toFixed(n < 10 ? 2 : n < 100 ? 1 : 0)} ${units[unit]}`;
  },
  duration(seconds) {
    if (seconds == null || !isFinite(seconds)) return "–";
    const s = Math.round(seconds);
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
    if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} m`;
    return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
  },
  number(n, digits = 4) {
    if (n == null || !isFinite(n)) return "–";
    const size = Math.abs(n);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return n.toExponential(2);
    return Number(n.toPrecision(digits)).toString();
  },
  short(n) {
    if (n == null || !isFinite(n)) return "–";
    const size = Math.abs(n);
    if (size >= 1e9) return `${+(n / 1e9).toPrecision(3)}G`;
    if (size >= 1e6) return `${+(n / 1e6).toPrecision(3)}M`;
    if (size >= 1e4) return `${+(n / 1e3).toPrecision(3)}k`;
    return Format.number(n, 4);
  },
  percent: (n) => (n == null ? "–" : `${Math.round(n)} %`),
  // Labels of times on an axis: as short as their distance allows, with the date where a day begins.
  clocks(splits) {
    const step = splits.length > 1 ? splits[1] - splits[0] : 1;
    let day = new Date().toDateString();
    return splits.map((seconds) => {
      const date = new Date(seconds * 1000);
      const clock = date.toLocaleTimeString("en-GB", step < 60 ? {} : { hour: "2-digit", minute: "2-digit" });
      const date_day = date.toDateString();
      const named = date_day === day ? clock : `${date.toLocaleDateString("en-CA").slice(5)} ${clock}`;
      day = date_day;
      return named;
    });
  },
  time(seconds) {
    const date = new Date(seconds * 1000);
    const today = new Date().toDateString() === date.toDateString();
    const clock = date.toLocaleTimeString("en-GB");
    return today ? clock : `${date.toLocaleDateString("en-CA")} ${clock}`;
  },
};

// Exponential moving average without a bias to zero; weight 0 returns the values unchanged. Missing values stay
// missing.
function smoothed(values, weight) {
  if (weight <= 0) return values;
  let mean = 0;
  let sum = 0;
  return values.map((value) => {
    if (value == null) return null;
    mean = weight * mean + (1 - weight) * value;
    sum = weight * sum + (1 - weight);
    return mean / sum;
  });
}

class Chart {
  // series: [{ label, color, width, scale, value, dash, points, faint }]; axes: [{ scale, value, side }]
  constructor(parent, { series, axes, time = false, height }) {
    this.parent = parent;
    this.options = { series, axes, time, height };
    this.log = false;
    this.data = [[]];
    this.empty = document.createElement("div");
    this.empty.className = "empty";
    parent.append(this.empty);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(parent);
    this.redraw = () => this.build();
    Theme.onChange(this.redraw);
    this.build();
  }

  size() {
    const box = this.parent.getBoundingClientRect();
    // Leave room for the legend below.
    return { width: Math.max(120, Math.floor(box.width)), height: Math.max(100, Math.floor(box.height) - 30) };
  }

  build() {
    if (!this.parent.isConnected && this.plot) { this.destroy(); return; }
    this.plot?.destroy();
    const { series, axes, time } = this.options;
    const [quiet, line] = ["quiet", "line"].map(Theme.color);
    const font = "11px system-ui, sans-serif";
    const common = { stroke: quiet, font, ticks: { stroke: line, width: 1, size: 4 }, grid: { stroke: line, width: 1 } };
    const scales = { x: { time } };
    for (const axis of axes) {
      const range = (plot, low, high) => {
        if (low == null || !isFinite(low)) return [0, 1];
        if (this.log && axis.log) return uPlot.rangeLog(low, high, 10, false);
        if (axis.fromZero) return [0, Math.max(high * 1.08, axis.least || 1e-12)];
        const margin = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
        return [low - margin, high + margin];
      };
      scales[axis.scale] = { distr: this.log && axis.log ? 3 : 1, range };
    }
    this.plot = new uPlot({
      ...this.size(),
      scales,
      cursor: { points: { size: 6 }, drag: { x: true, y: false } },
      legend: { live: true },
      hooks: { setSelect: [(plot) => { this.isZoomed ||= plot.select.width > 0; }] },
      axes: [
        { ...common, space: time ? 78 : 60, values: (plot, splits) => (time ? Format.clocks(splits) : splits.map(Format.short)) },
        ...axes.map((axis, index) => ({
          ...common, scale: axis.scale, side: axis.side ?? 3, size: axis.size ?? 54, space: 34,
          grid: index === 0 ? common.grid : { show: false },
          values: (plot, splits) => splits.map((v) => (v == null ? "" : (axis.value ?? Format.short)(v))),
        })),
      ],
      series: [
        time ? { label: "time", value: (plot, v) => (v == null ? "–" : Format.time(v)) }
             : { label: "step", value: (plot, v) => (v == null ? "–" : Format.count(v)) },
        ...series.map((one) => ({
          label: one.label, scale: one.scale, stroke: () => Theme.color(one.color) + (one.faint ? "59" : ""),
          width: one.width ?? 2, dash: one.dash, spanGaps: one.spanGaps ?? true, show: one.show ?? true,
          points: { show: one.points ?? false, size: 5, fill: () => Theme.color(one.color) },
          value: (plot, v) => (v == null ? "–" : (one.value ?? Format.number)(v)),
        })),
      ],
    }, this.data, this.parent);
    this.isZoomed = false;
    this.plot.over.addEventListener("dblclick", () => { this.isZoomed = false; });
    this.say();
  }

  say() {
    const has = this.data.length > 1 && this.data[0].length > 1 && this.data.slice(1).some((ys) => ys.some((y) => y != null));
    this.empty.textContent = has ? "" : this.nothing ?? "nothing yet";
    this.empty.hidden = has;
  }

  // tables: one [x, y…] per series, joined on x
  set(tables) {
    const joined = tables.length === 1 ? tables[0] : uPlot.join(tables.map(([x, ...ys]) => [x, ...ys]));
    this.data = this.log ? [joined[0], ...joined.slice(1).map((ys) => ys.map((y) => (y > 0 ? y : null)))] : joined;
    // Keep the zoom. Set the data first: without data uPlot fixes the range of a scale when the visibility of its series changes.
    this.plot?.setData(this.data, !this.isZoomed);
    // Omit series without values from the legend.
    joined.slice(1).forEach((ys, index) => {
      const is = ys.some((y) => y != null);
      if (this.plot && this.plot.series[index + 1].show !== is) this.plot.setSeries(index + 1, { show: is });
      const row = this.plot?.root.querySelectorAll(".u-series")[index + 1];
      if (row) row.hidden = !is;
    });
    if (this.isZoomed) this.plot?.redraw(true);
    this.say();
  }

  setLog(log) {
    if (this.log !== log) { this.log = log; this.build(); }
  }

  resize() {
    const { width, height } = this.size();
    if (this.plot && (this.plot.width !== width || this.plot.height !== height)) this.plot.setSize({ width, height });
  }

  destroy() {
    this.observer.disconnect();
    this.plot?.destroy();
    this.plot = null;
  }
}

// Draws a few values as a line without axes.
function sparkline(canvas, values) {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [84, 34];
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const known = values.filter((v) => v != null);
  if (known.length < 2) return;
  const low = Math.min(...known);
  const span = Math.max(...known) - low || 1;
  const place = (v, i) => [2 + (i / (known.length - 1)) * (width - 4), height - 4 - ((v - low) / span) * (height - 8)];
  pen.beginPath();
  known.forEach((v, i) => pen.lineTo(...place(v, i)));
  pen.strokeStyle = Theme.color("accent");
  pen.lineWidth = 1.6;
  pen.lineJoin = "round";
  pen.stroke();
}
