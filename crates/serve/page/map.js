// Memory map of a plan: time within a micro-batch across, offsets up. A line marks a moment; the tensors that are live
// then are listed below. The server computes the map from plan.json.
"use strict";

const ROLE_COLORS = ["weights", "optimizer", "gradients", "staging", "activations", "scratch"];

class MemoryPlan {
  constructor(canvas, live, map) {
    Object.assign(this, { canvas, live, map, pointed: null, now: null });
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      const moment = Math.floor(((event.clientX - box.left - this.left) / (box.width - this.left)) * map.moments);
      this.pointed = Math.max(0, Math.min(map.moments - 1, moment));
      this.draw();
    };
    canvas.addEventListener("pointermove", at);
    canvas.addEventListener("pointerdown", at);
    canvas.addEventListener("pointerleave", () => { this.pointed = null; this.draw(); });
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(canvas);
    Theme.onChange(() => canvas.isConnected && this.draw());
    this.left = 58;
    this.top = 14;
  }

  // now: { moment, words } for the current moment of the run, or its best estimate
  setNow(now) {
    const is = JSON.stringify(now);
    if (is === this.said) return;
    this.said = is;
    this.now = now;
    this.draw();
  }

  draw() {
    const { canvas, map, left, top } = this;
    const box = canvas.getBoundingClientRect();
    if (box.width < 10) return;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(box.width * ratio);
    canvas.height = Math.round(box.height * ratio);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.clearRect(0, 0, box.width, box.height);
    const near = map.budget_bytes <= map.peak_bytes * 1.5;
    const ceiling = (near ? Math.max(map.peak_bytes, map.budget_bytes) : map.peak_bytes) * 1.04 || 1;
    const x = (moment) => left + (moment / map.moments) * (box.width - left);
    const y = (bytes) => box.height - (bytes / ceiling) * (box.height - top);
    pen.fillStyle = Theme.color("ground");
    pen.fillRect(left, top, box.width - left, box.height - top);
    const colors = ROLE_COLORS.map(Theme.color);
    for (const rect of map.rects) {
      pen.fillStyle = colors[rect.role];
      const high = Math.max(0.5, y(rect.offset) - y(rect.offset + rect.bytes));
      const wide = Math.max(0.5, x(rect.until) - x(rect.first));
      pen.fillRect(x(rect.first), y(rect.offset + rect.bytes), wide, high);
      if (high > 3 && wide > 3) {
        pen.strokeStyle = "#0003";
        pen.lineWidth = 0.5;
        pen.strokeRect(x(rect.first), y(rect.offset + rect.bytes), wide, high);
      }
    }
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    const label = (bytes, color) => {
      pen.fillStyle = color;
      pen.fillText(Format.bytes(bytes), left - 7, Math.max(7, Math.min(box.height - 7, y(bytes))));
    };
    label(0, Theme.color("quiet"));
    label(map.peak_bytes / 2, Theme.color("quiet"));
    const line = (bytes, color) => {
      pen.strokeStyle = color;
      pen.lineWidth = 1.5;
      pen.setLineDash([6, 4]);
      pen.beginPath();
      pen.moveTo(left, y(bytes));
      pen.lineTo(box.width, y(bytes));
      pen.stroke();
      pen.setLineDash([]);
    };
    line(map.peak_bytes, Theme.color("ink"));
    const apart = near && y(map.peak_bytes) - y(map.budget_bytes) > 13;
    if (near) line(map.budget_bytes, Theme.color("bad"));
    if (!near || apart) label(map.peak_bytes, Theme.color("ink"));
    if (near) label(map.budget_bytes, Theme.color("bad"));
    const moment = this.pointed ?? this.now?.moment ?? map.fullest;
    pen.strokeStyle = Theme.color("ink");
    pen.lineWidth = 1.5;
    pen.beginPath();
    pen.moveTo(x(moment + 0.5), top);
    pen.lineTo(x(moment + 0.5), box.height);
    pen.stroke();
    this.list(moment);
  }

  list(moment) {
    const { map } = this;
    const live = map.rects.filter((rect) => rect.first <= moment && moment < rect.until);
    live.sort((a, b) => b.bytes - a.bytes);
    const bytes = live.reduce((sum, rect) => sum + rect.bytes, 0);
    const where = this.pointed == null ? this.now?.words ?? "At the peak" : `At moment ${moment} of ${map.moments - 1}`;
    const said = document.createElement("span");
    said.textContent = `${where}: ${live.length} tensors live, ${Format.bytes(bytes)}`;
    const list = document.createElement("ol");
    for (const rect of live.slice(0, 12)) {
      const item = document.createElement("li");
      const mark = document.createElement("i");
      mark.style.background = `var(--${ROLE_COLORS[rect.role]})`;
      const name = document.createElement("span");
      name.textContent = rect.name;
      name.title = `${rect.name}, ${map.roles[rect.role]}`;
      const size = document.createElement("small");
      size.textContent = Format.bytes(rect.bytes);
      item.append(mark, name, size);
      list.append(item);
    }
    this.live.replaceChildren(said, list);
  }

  destroy() {
    this.observer.disconnect();
  }
}
