// Draws the topology: dagre says where boxes and arrows are, this makes SVG of it, and lets people
// zoom and move. The page brings the boxes and arrows in #graph-data. Every name becomes text.
"use strict";

(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const FONT = "system-ui, sans-serif";
  const PAD = 12;
  const HEAD = 42;
  const ROW = 22;
  const WIDTH = { least: 110, most: 240 };
  const ZOOM = { least: 0.2, most: 4, step: 1.25 };
  const MOVE = 60;
  const pen = document.createElement("canvas").getContext("2d");

  const wide = (text, size, weight = 400) => {
    pen.font = `${weight} ${size}px ${FONT}`;
    return pen.measureText(text).width;
  };
  // The beginning and the end of a name that is too long: names often differ at their ends.
  const fitted = (text, most, size, weight) => {
    if (wide(text, size, weight) <= most) return text;
    let kept = text.length - 1;
    const cut = () =>
      `${text.slice(0, Math.ceil(kept / 2))}…${text.slice(text.length - Math.floor(kept / 2))}`;
    while (kept > 1 && wide(cut(), size, weight) > most) kept -= 1;
    return cut();
  };

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const texted = (name, attributes, text) => {
    const made = element(name, attributes);
    made.textContent = text;
    return made;
  };

  const sized = (box) => {
    const texts = [wide(box.name, 13, 600), wide(box.note, 11)];
    texts.push(...box.stores.map((store) => wide(`${store.name}  ${store.note}`, 12) + 8));
    const width = Math.min(WIDTH.most, Math.max(WIDTH.least, Math.ceil(Math.max(...texts)) + 2 * PAD));
    return { width, height: HEAD + (box.stores.length ? box.stores.length * ROW + 6 : 0) };
  };

  // Where everything is, if records flow to the right (LR) or down (TB).
  const placed = (data, rankdir) => {
    const graph = new dagre.graphlib.Graph();
    const ranksep = rankdir === "LR" ? 44 : 30;
    graph.setGraph({ rankdir, nodesep: 20, edgesep: 16, ranksep, marginx: 14, marginy: 14 });
    graph.setDefaultEdgeLabel(() => ({}));
    for (const box of data.boxes) graph.setNode(box.id, sized(box));
    for (const [begin, end, note] of data.edges) {
      const label = note ? { width: Math.ceil(wide(note, 11)) + 10, height: 16, labelpos: "c" } : {};
      graph.setEdge(begin, end, { note, ...label });
    }
    dagre.layout(graph);
    const { width, height } = graph.graph();
    return { graph, rankdir, width: Math.max(width, 1), height: Math.max(height, 1) };
  };

  // An arrow bends only between the columns of boxes, and goes straight through a column, where
  // dagre left room for it: so it crosses no box.
  const route = ({ graph, rankdir }, edge) => {
    const flows = rankdir === "LR"
      ? { at: "x", over: "y", long: "width", broad: "height" }
      : { at: "y", over: "x", long: "height", broad: "width" };
    const half = new Map();
    for (const id of graph.nodes()) {
      const node = graph.node(id);
      const column = Math.round(node[flows.at]);
      half.set(column, Math.max(half.get(column) ?? 0, node[flows.long] / 2));
    }
    const reach = (at) => half.get(Math.round(at)) ?? 0;
    const [begin, end] = [graph.node(edge.v), graph.node(edge.w)];
    const points = graph.edge(edge).points.slice(1, -1);
    const way = end[flows.at] >= begin[flows.at] ? 1 : -1;
    const port = (node, towards, side) => {
      const room = Math.max(0, node[flows.broad] / 2 - 8);
      const off = Math.max(-room, Math.min(room, towards[flows.over] - node[flows.over]));
      return { at: node[flows.at] + side * node[flows.long] / 2, over: node[flows.over] + off };
    };
    const out = port(begin, points[0] ?? end, way);
    const into = port(end, points.at(-1) ?? begin, -way);
    const spot = ({ at, over }) => (rankdir === "LR" ? `${at},${over}` : `${over},${at}`);
    let path = `M${spot(out)}`;
    let here = out;
    const straight = (there) => {
      if (there.at === here.at && there.over === here.over) return;
      path += ` L${spot(there)}`;
      here = there;
    };
    const bent = (there) => {
      const middle = (here.at + there.at) / 2;
      path += ` C${spot({ at: middle, over: here.over })} ` +
        `${spot({ at: middle, over: there.over })} ${spot(there)}`;
      here = there;
    };
    straight({ at: begin[flows.at] + way * reach(begin[flows.at]), over: out.over });
    for (const point of points) {
      const [at, over] = [point[flows.at], point[flows.over]];
      bent({ at: at - way * reach(at), over });
      straight({ at: at + way * reach(at), over });
    }
    bent({ at: end[flows.at] - way * reach(end[flows.at]), over: into.over });
    straight(into);
    return path;
  };

  const linked = (address, shown) =>
    address ? element("a", { href: address }, shown) : shown;

  const boxOf = (box, { x, y, width, height }) => {
    const group = element("g", {
      class: `box ${box.kind}`, "data-id": box.id, transform: `translate(${x - width / 2},${y - height / 2})`,
    });
    const room = width - 2 * PAD;
    const head = element("g", {},
      texted("title", {}, `${box.name}\n${box.note}`),
      texted("text", { class: "name", x: PAD, y: 18 }, fitted(box.name, room, 13, 600)),
      texted("text", { class: "note", x: PAD, y: 33 }, fitted(box.note, room, 11)));
    group.append(element("rect", { width, height, rx: 7 }), linked(box.address, head));
    box.stores.forEach((store, number) => {
      const top = HEAD + number * ROW;
      const note = fitted(store.note, room / 2, 11);
      const name = fitted(store.name, room - wide(note, 11) - 16, 12);
      group.append(linked(store.address, element("g", { class: "store" },
        texted("title", {}, `store ${store.name}, ${store.note}`),
        element("rect", { x: 6, y: top - 1, width: width - 12, height: ROW - 2, rx: 4 }),
        texted("text", { x: PAD, y: top + 14 }, name),
        texted("text", { class: "note", x: width - PAD, y: top + 14, "text-anchor": "end" }, note))));
    });
    return group;
  };

  const edgeOf = (layout, data, edge) => {
    const { note, x, y } = layout.graph.edge(edge);
    const names = Object.fromEntries(data.boxes.map((box) => [box.id, box.name]));
    const group = element("g", { class: "edge", "data-begin": edge.v, "data-end": edge.w },
      texted("title", {}, `${names[edge.v]} → ${names[edge.w]}${note ? `: ${note}` : ""}`),
      element("path", { d: route(layout, edge), "marker-end": "url(#graph-arrow)" }));
    if (note) group.append(texted("text", { x, y: y + 4, "text-anchor": "middle" }, note));
    return group;
  };

  const pictureOf = (layout, data) => {
    const moved = element("g", { class: "moved" },
      ...layout.graph.edges().map((edge) => edgeOf(layout, data, edge)),
      ...data.boxes.map((box) => boxOf(box, layout.graph.node(box.id))));
    const arrow = element("marker", {
      id: "graph-arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto",
    }, element("path", { d: "M0,0 L8,4 L0,8 z" }));
    return element("svg", { class: "topology" }, element("defs", {}, arrow), moved);
  };

  class Picture {
    constructor(canvas) {
      this.canvas = canvas;
      this.text = "";
      this.touched = false;
      canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      canvas.addEventListener("keydown", (event) => this.key(event));
      canvas.addEventListener("pointerdown", (event) => this.grab(event));
      // Who drags by a link does not want to follow it, nor to take it elsewhere.
      canvas.addEventListener("click", (event) => this.dragged && event.preventDefault(), true);
      canvas.addEventListener("dragstart", (event) => event.preventDefault());
      for (const button of canvas.parentElement.querySelectorAll("[data-zoom]")) {
        button.addEventListener("click", () => this.press(button.dataset.zoom));
      }
      new ResizeObserver(() => this.resized()).observe(canvas);
    }

    show(text) {
      if (text === this.text) return;
      this.text = text;
      this.data = JSON.parse(text);
      const layouts = ["LR", "TB"].map((rankdir) => placed(this.data, rankdir));
      this.scales = (layout) => Math.min(1, this.canvas.clientWidth / layout.width, this.tallest() / layout.height);
      this.layouts = layouts;
      this.resized(true);
    }

    // It may be taller than the screen, as the page scrolls anyway, but not by much.
    tallest() {
      return Math.max(520, Math.min(1000, innerHeight));
    }

    resized(anew = false) {
      if (!this.layouts || !this.canvas.clientWidth) return;
      const [across, down] = this.layouts;
      const best = this.scales(across) >= this.scales(down) - 0.05 ? across : down;
      if (anew || best !== this.layout) {
        this.layout = best;
        this.canvas.replaceChildren(pictureOf(best, this.data));
      }
      this.canvas.style.height = `${Math.ceil(best.height * this.scales(best))}px`;
      if (this.touched) this.move();
      else this.fit();
    }

    fit() {
      const { clientWidth, clientHeight } = this.canvas;
      const scale = this.scales(this.layout);
      this.touched = false;
      this.view = {
        scale,
        x: (clientWidth - this.layout.width * scale) / 2,
        y: (clientHeight - this.layout.height * scale) / 2,
      };
      this.move();
    }

    move() {
      const { scale, x, y } = this.view;
      this.canvas.querySelector(".moved").setAttribute("transform", `translate(${x},${y}) scale(${scale})`);
      this.canvas.classList.toggle("touched", this.touched);
    }

    shift(x, y) {
      this.touched = true;
      this.view.x += x;
      this.view.y += y;
      this.move();
    }

    // Zooms by a factor around a place of the canvas, which stays where it is.
    zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
      const before = this.view.scale;
      const scale = Math.max(ZOOM.least, Math.min(ZOOM.most, before * factor));
      this.touched = true;
      this.view = {
        scale,
        x: x - (x - this.view.x) * (scale / before),
        y: y - (y - this.view.y) * (scale / before),
      };
      this.move();
    }

    press(what) {
      if (what === "fit") this.fit();
      else this.zoom(what === "in" ? ZOOM.step : 1 / ZOOM.step);
    }

    // The wheel scrolls the page, unless people have chosen the picture or hold Ctrl.
    wheel(event) {
      if (!event.ctrlKey && !this.canvas.contains(document.activeElement)) return;
      event.preventDefault();
      const { left, top } = this.canvas.getBoundingClientRect();
      this.zoom(Math.exp(-event.deltaY * 0.0015), event.clientX - left, event.clientY - top);
    }

    key(event) {
      const keys = {
        "+": () => this.zoom(ZOOM.step), "=": () => this.zoom(ZOOM.step), "-": () => this.zoom(1 / ZOOM.step),
        0: () => this.fit(),
        ArrowLeft: () => this.shift(MOVE, 0), ArrowRight: () => this.shift(-MOVE, 0),
        ArrowUp: () => this.shift(0, MOVE), ArrowDown: () => this.shift(0, -MOVE),
      };
      if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
      event.preventDefault();
      keys[event.key]();
    }

    // A finger scrolls the page until somebody has zoomed; then it moves the picture.
    grab(event) {
      if (event.button || (event.pointerType === "touch" && !this.touched)) return;
      this.dragged = false;
      let [x, y, dragged] = [event.clientX, event.clientY, false];
      const moved = (next) => {
        if (!dragged && Math.hypot(next.clientX - x, next.clientY - y) < 4) return;
        if (!dragged) this.canvas.setPointerCapture(event.pointerId);
        dragged = true;
        this.shift(next.clientX - x, next.clientY - y);
        [x, y] = [next.clientX, next.clientY];
      };
      const ended = () => {
        this.canvas.removeEventListener("pointermove", moved);
        removeEventListener("pointerup", ended);
        removeEventListener("pointercancel", ended);
        this.dragged = dragged;
      };
      this.canvas.addEventListener("pointermove", moved);
      addEventListener("pointerup", ended);
      addEventListener("pointercancel", ended);
    }
  }

  let picture = null;
  const draw = () => {
    const canvas = document.querySelector("#graph .canvas");
    const data = document.getElementById("graph-data");
    if (!canvas || !data) return;
    if (!picture || picture.canvas !== canvas) picture = new Picture(canvas);
    picture.show(data.dataset.graph);
  };
  document.addEventListener("htmx:afterSettle", draw);
  draw();
})();
