
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const NS = "http://www.w3.org/2000/svg";
  const LEFT = 68, RIGHT = 12, TOP = 46, BOTTOM = 40;

  // Texts.
  // As in the table; a round number of an axis has no decimals.
  const bytesText = (size, isRound = false) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = 0;
    while (size >= 1024 && unit + 1 < units.length) { size /= 1024; unit += 1; }
    const digits = unit === 0 || size >= 999.95 || (isRound && Number.isInteger(size)) ? 0 : 1;
    return `${size.toFixed(digits)} ${units[unit]}`;
  };
  const timeText = (us) => {
    if (us === 0) return "0 s";
    if (us < 1e3) return `${+us.toPrecision(3)} us`;
    if (us < 1e6) return `${+(us / 1e3).toPrecision(4)} ms`;
    if (us < 6e7) return `${+(us / 1e6).toPrecision(4)} s`;
    const seconds = Math.round(us / 1e6);
    const two = (number) => String(number).padStart(2, "0");
    if (seconds < 3600) return `${Math.floor(seconds / 60)}:${two(seconds % 60)} min`;
    return `${Math.floor(seconds / 3600)}:${two(Math.floor(seconds / 60) % 60)}:${two(seconds % 60)} h`;
  };
  const numberText = (number) => number.toLocaleString("en-US");

  // Elements. Texts are only ever set as text.
  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const shape = (parent, name, attributes, text) => {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };
  const swatch = (band) => {
    const made = element("span", { class: "swatch" });
    made.style.background = `var(--band${band})`;
    return made;
  };

  const showTip = (children, chart, x, y) => {
    tip.replaceChildren(...children);
    tip.hidden = false;
    const box = chart.getBoundingClientRect();
    const room = document.documentElement.clientWidth;
    let left = box.left + x + 14;
    if (left + tip.offsetWidth > room - 8) left = box.left + x - 14 - tip.offsetWidth;
    left = Math.max(8, Math.min(left, room - 8 - tip.offsetWidth));
    let top = box.top + y + 14;
    if (top + tip.offsetHeight > innerHeight - 8) top = box.top + y - 14 - tip.offsetHeight;
    top = Math.max(8, top);
    tip.style.left = `${left + scrollX}px`;
    tip.style.top = `${top + scrollY}px`;
  };
  const hideTip = () => { tip.hidden = true; };
  const listOf = (pairs) => {
    const list = element("dl");
    for (const [name, value, band] of pairs) {
      const term = element("dt");
      if (band !== undefined) term.append(swatch(band));
      term.append(element("bdi", {}, name));
      list.append(term, element("dd", {}, value));
    }
    return list;
  };

  // The values of a few ticks up to `most`.
  const byteTicks = (most, count) => {
    let unit = 1;
    while (most / unit > count) unit *= 2;
    return [...Array(Math.floor(most / unit) + 1).keys()].map((at) => at * unit);
  };
  const timeTicks = (most, count) => {
    // Beyond a minute ticks are at whole parts of minutes and hours.
    const seconds = [10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600];
    const unit = most < 6e7 ? undefined : seconds.map((it) => it * 1e6).find((it) => most / it <= count);
    if (unit === undefined) return plainTicks(most, count);
    return [...Array(Math.floor(most / unit) + 1).keys()].map((at) => at * unit);
  };
  const plainTicks = (most, count) => {
    if (most <= 0) return [0];
    let unit = 10 ** Math.floor(Math.log10(most / count));
    unit *= [1, 2, 5, 10].find((factor) => most / (unit * factor) <= count) ?? 10;
    unit = Math.max(unit, 1);
    return [...Array(Math.floor(most / unit) + 1).keys()].map((at) => at * unit);
  };

  // A tenant has the same colour on all devices, unless another one of the device has it.
  const known = new Map();
  const coloursOf = (bands) => {
    const used = new Set();
    const free = () => [...Array(12).keys()].find((it) => !used.has(it)) ?? 11;
    return bands.map(({ name }) => known.get(name)).map((colour) => {
      if (colour === undefined || used.has(colour)) return undefined;
      used.add(colour);
      return colour;
    }).map((colour, at) => {
      const chosen = colour ?? free();
      used.add(chosen);
      if (!known.has(bands[at].name)) known.set(bands[at].name, chosen);
      return chosen;
    });
  };

  class DeviceView {
    constructor(device) {
      this.device = device;
      this.colours = coloursOf(device.bands);
      this.byTime = false;
      this.column = -1;
      this.block = -1;
      this.totals = device.times_us.map((_, at) =>
        device.bands.reduce((sum, band) => sum + band.bytes[at], 0));
      this.most = Math.max(device.peak.bytes, 1);
      this.high = Math.max(1, ...device.blocks.map((it) => it.offset + it.bytes));
    }

    // From 0 to 1.
    place(step, us) {
      const { steps, span_us } = this.device;
      return this.byTime ? us / span_us : step / Math.max(steps, 1);
    }
    columnStart(at) {
      const { times_us, width, steps, span_us } = this.device;
      if (at >= times_us.length) return 1;
      return this.place(Math.min(at * width, steps), Math.min(times_us[at], span_us));
    }
    x(place) { return LEFT + place * (this.width - LEFT - RIGHT); }

    build(parent) {
      const { device } = this;
      const section = element("section");
      if (data.devices.length > 1) section.append(element("h2", {}, `Device ${device.device}`));
      const bar = element("div", { class: "bar" });
      const legend = element("ul", { class: "legend", "aria-label": "Legend" });
      device.bands.forEach((band, at) =>
        legend.append(element("li", {}, swatch(this.colours[at]), element("bdi", { title: band.name }, band.name))));
      if (device.failures.length > 0) {
        const mark = element("span", { class: "mark", "aria-hidden": "true" }, "▼");
        legend.append(element("li", {}, mark, "failed allocation"));
      }
      bar.append(legend);
      if (device.span_us > 0) bar.append(this.axisChoice());
      this.chart = shape(section, "svg", {
        class: "chart", tabindex: 0, role: "img", height: 340,
        "aria-label": `Live memory of device ${device.device} by tenant, peak ` +
          `${bytesText(device.peak.bytes)}. Arrow keys show the values.`,
      });
      section.insertBefore(element("h3", {}, "Live memory by tenant"), this.chart);
      section.insertBefore(bar, this.chart);
      const omitted = "each from its allocation to its free, as high as its size";
      section.append(element("h3", {}, "Largest blocks"),
        element("p", { class: "faint" }, omitted));
      this.map = shape(section, "svg", {
        class: "chart", tabindex: 0, role: "img", height: 300,
        "aria-label": `The ${device.blocks.length} largest blocks. Arrow keys go from one to the next.`,
      });
      parent.append(section);
      this.listen();
      new ResizeObserver(() => this.draw()).observe(section);
      this.draw();
    }

    axisChoice() {
      const group = element("fieldset", { "aria-label": "Horizontal axis" });
      for (const [text, byTime] of [["steps", false], ["time", true]]) {
        const input = element("input", { type: "radio", name: `axis${this.device.device}` });
        input.checked = byTime === this.byTime;
        input.addEventListener("change", () => { this.byTime = byTime; hideTip(); this.draw(); });
        group.append(element("label", {}, input, text));
      }
      return group;
    }

    draw() {
      this.width = Math.max(280, this.chart.clientWidth || 800);
      this.drawChart();
      this.drawMap();
      this.point();
    }

    axes(chart, most, height) {
      const y = (value) => height - BOTTOM - value / most * (height - TOP - BOTTOM);
      for (const tick of byteTicks(most, 6)) {
        const at = Math.round(y(tick)) + 0.5;
        shape(chart, "path", { class: "grid", d: `M${LEFT} ${at}H${this.width - RIGHT}` });
        shape(chart, "text", { x: LEFT - 8, y: at + 4, "text-anchor": "end" }, bytesText(tick, true));
      }
      const whole = this.byTime ? this.device.span_us : this.device.steps;
      const text = this.byTime ? timeText : numberText;
      const ticks = this.byTime ? timeTicks : plainTicks;
      const right = this.width - RIGHT;
      for (const tick of ticks(whole, Math.max(2, Math.floor(this.width / 130)))) {
        const at = this.x(whole === 0 ? 0 : tick / whole);
        shape(chart, "path", { class: "grid", d: `M${at} ${height - BOTTOM}v5` });
        const anchor = at < LEFT + 20 ? "start" : at > right - 24 ? "end" : "middle";
        shape(chart, "text", { x: at, y: height - BOTTOM + 18, "text-anchor": anchor }, text(tick));
      }
      const name = this.byTime ? "time since the first step" : "step: an allocation, a free, or a failure";
      shape(chart, "text", { x: (LEFT + right) / 2, y: height - 6, "text-anchor": "middle" }, name);
      return y;
    }

    drawChart() {
      const { device, chart } = this;
      chart.replaceChildren();
      const height = 340, count = device.times_us.length;
      this.chartY = this.axes(chart, this.most, height);
      const edges = [...Array(count + 1).keys()].map((at) => this.x(this.columnStart(at)));
      const below = new Array(count).fill(0);
      device.bands.forEach((band, number) => {
        const top = [], bottom = [];
        for (let at = 0; at < count; at += 1) {
          const low = this.chartY(below[at]).toFixed(1);
          below[at] += band.bytes[at];
          const high = this.chartY(below[at]).toFixed(1);
          const [from, to] = [edges[at].toFixed(1), edges[at + 1].toFixed(1)];
          top.push(`${from} ${high}L${to} ${high}`);
          bottom.push(`${to} ${low}L${from} ${low}`);
        }
        if (count > 0) {
          const d = `M${top.join("L")}L${bottom.reverse().join("L")}Z`;
          shape(chart, "path", { d, style: `fill:var(--band${this.colours[number]})` });
        }
      });
      this.marks = device.failures.map(([at]) => ({ at, x: (edges[at] + edges[at + 1]) / 2 }));
      for (const mark of this.marks) {
        const x = mark.x.toFixed(1);
        shape(chart, "path", { class: "alarm", d: `M${x} 15V${height - BOTTOM}` });
        // Above the peak's label.
        shape(chart, "path", { class: "alarm-mark", d: `M${mark.x - 5} 6h10l-5 9z` });
      }
      if (count > 0) this.drawPeak();
      this.cursor = shape(chart, "path", { class: "cursor", d: "" });
    }

    drawPeak() {
      const { peak } = this.device;
      const x = this.x(this.place(peak.step + 0.5, peak.time_us)), y = this.chartY(peak.bytes);
      shape(this.chart, "circle", { class: "peak", cx: x, cy: y, r: 4 });
      const right = this.width - RIGHT;
      const anchor = x < LEFT + 70 ? "start" : x > right - 70 ? "end" : "middle";
      shape(this.chart, "text", { class: "label", x, y: y - 9, "text-anchor": anchor },
        `peak ${bytesText(peak.bytes)}`);
    }

    drawMap() {
      const { device, map } = this;
      map.replaceChildren();
      const height = 300;
      this.mapY = this.axes(map, this.high, height);
      this.boxes = device.blocks.map((block) => {
        const from = this.x(this.place(block.steps[0], block.times_us[0]));
        const to = this.x(this.place(block.steps[1], block.times_us[1]));
        const top = this.mapY(block.offset + block.bytes);
        return { x: from, y: top, w: Math.max(to - from, 1), h: this.mapY(block.offset) - top };
      });
      this.boxes.forEach((box, at) => {
        const gap = box.w > 4 && box.h > 4 ? 0.5 : 0;
        shape(map, "rect", {
          x: (box.x + gap).toFixed(1), y: (box.y + gap).toFixed(1),
          width: (box.w - 2 * gap).toFixed(1), height: Math.max(box.h - 2 * gap, 0.5).toFixed(1),
          style: `fill:var(--band${this.colours[device.blocks[at].band]})`,
        });
        if (box.w > 64 && box.h > 15) {
          shape(map, "text", {
            class: "inside", x: box.x + box.w / 2, y: box.y + box.h / 2 + 4, "text-anchor": "middle",
          }, bytesText(device.blocks[at].bytes));
        }
      });
      this.chosen = shape(map, "rect", { class: "chosen", width: 0, height: 0 });
    }

    // The cursor of the column and the outline of the block that are chosen.
    point() {
      if (this.column >= 0) {
        const x = this.x((this.columnStart(this.column) + this.columnStart(this.column + 1)) / 2);
        this.cursor.setAttribute("d", `M${x.toFixed(1)} ${TOP}V${340 - BOTTOM}`);
      } else {
        this.cursor.setAttribute("d", "");
      }
      const box = this.boxes[this.block] ?? { x: 0, y: 0, w: 0, h: 0 };
      for (const [name, value] of [["x", box.x], ["y", box.y], ["width", box.w], ["height", box.h]]) {
        this.chosen.setAttribute(name, value);
      }
      this.chosen.style.display = this.block < 0 ? "none" : "";
    }

    showColumn(at, y) {
      const { device } = this;
      this.column = at;
      this.block = -1;
      this.point();
      const first = at * device.width, last = Math.min(first + device.width, device.steps) - 1;
      const steps = first === last ? `Step ${numberText(first)}`
        : `Steps ${numberText(first)} to ${numberText(last)}, at their maximum`;
      const pairs = [["total", bytesText(this.totals[at])]];
      device.bands.forEach((band, number) => {
        if (band.bytes[at] > 0) pairs.push([band.name, bytesText(band.bytes[at]), this.colours[number]]);
      });
      if (device.span_us > 0) pairs.push(["time", timeText(device.times_us[at])]);
      const failed = device.failures.find(([column]) => column === at);
      if (failed) {
        const most = bytesText(failed[2]);
        pairs.push(["failed", failed[1] === 1 ? most : `${numberText(failed[1])}, up to ${most}`]);
      }
      const x = this.x((this.columnStart(at) + this.columnStart(at + 1)) / 2);
      showTip([element("b", {}, steps), listOf(pairs)], this.chart, x, y ?? TOP);
    }

    showBlock(at, x, y) {
      const { device } = this;
      const block = device.blocks[at];
      this.block = at;
      this.column = -1;
      this.point();
      const from = block.is_held ? "before the trace" : `step ${numberText(block.steps[0])}`;
      const to = block.is_live ? "live at the end" : `step ${numberText(block.steps[1])}`;
      const pairs = [
        [device.bands[block.band].name, "", this.colours[block.band]], ["allocated", from], ["freed", to],
      ];
      if (device.span_us > 0) {
        if (!block.is_held) pairs.push(["at", timeText(block.times_us[0])]);
        pairs.push(["lifetime", timeText(block.times_us[1] - block.times_us[0])]);
      }
      if (block.thread > 0) pairs.push(["thread", String(block.thread)]);
      pairs.push(["stream", block.stream], ["address", block.address]);
      const children = [element("b", {}, bytesText(block.bytes)), listOf(pairs)];
      if (block.stack !== null) {
        const lines = data.stacks[block.stack].split("\n");
        const shown = lines.slice(0, 12);
        if (lines.length > shown.length) shown.push(`and ${lines.length - shown.length} more`);
        children.push(element("pre", {}, shown.join("\n")));
      }
      const box = this.boxes[at];
      showTip(children, this.map, x ?? Math.min(box.x + box.w, this.width - RIGHT), y ?? box.y);
    }

    // A failed allocation within a few pixels comes first: its column may be narrower.
    columnAt(x) {
      const marks = this.marks.map(({ at, x: of }) => ({ at, distance: Math.abs(of - x) }));
      const nearest = marks.reduce((a, b) => (b.distance < a.distance ? b : a), { distance: 5 });
      if (nearest.at !== undefined) return nearest.at;
      const count = this.device.times_us.length;
      const place = (x - LEFT) / (this.width - LEFT - RIGHT);
      let low = 0, high = count - 1;
      while (low < high) {
        const middle = Math.ceil((low + high) / 2);
        if (this.columnStart(middle) <= place) low = middle; else high = middle - 1;
      }
      return low;
    }

    // The block at a point, or within a few pixels of it.
    blockAt(x, y) {
      let best = -1, least = 5;
      this.boxes.forEach((box, at) => {
        const dx = Math.max(box.x - x, 0, x - box.x - box.w);
        const dy = Math.max(box.y - y, 0, y - box.y - box.h);
        const distance = Math.max(dx, dy);
        if (distance < least) { least = distance; best = at; }
      });
      return best;
    }

    leave() {
      this.column = -1;
      this.block = -1;
      this.point();
      hideTip();
    }

    listen() {
      const onPoint = (chart, show) => {
        const moved = (event) => {
          const box = chart.getBoundingClientRect();
          show(event.clientX - box.left, event.clientY - box.top);
        };
        chart.addEventListener("pointermove", moved);
        chart.addEventListener("pointerdown", moved);
        chart.addEventListener("pointerleave", (event) => {
          // After a touch the tooltip stays until the next.
          if (event.pointerType === "mouse") this.leave();
        });
        chart.addEventListener("blur", () => this.leave());
      };
      onPoint(this.chart, (x, y) => {
        if (this.totals.length > 0) this.showColumn(this.columnAt(x), y);
      });
      onPoint(this.map, (x, y) => {
        const at = this.blockAt(x, y);
        if (at < 0) this.leave(); else this.showBlock(at, x, y);
      });
      const onKey = (chart, count, current, show) => {
        chart.addEventListener("keydown", (event) => {
          const page = Math.max(1, Math.floor(count / 10));
          const at = current();
          const next = {
            ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1,
            PageDown: at + page, PageUp: at - page, Home: 0, End: count - 1,
          }[event.key];
          if (event.key === "Escape") this.leave();
          if (next === undefined || count === 0) return;
          event.preventDefault();
          show(Math.max(0, Math.min(next, count - 1)));
        });
      };
      onKey(this.chart, this.totals.length, () => this.column, (at) => this.showColumn(at));
      onKey(this.map, this.device.blocks.length, () => this.block, (at) => this.showBlock(at));
    }
  }

  const charts = document.getElementById("charts");
  charts.replaceChildren();
  for (const device of data.devices) new DeviceView(device).build(charts);
})();
