"use strict";
// Prompts, model names and judge replies are untrusted: they reach the page as text nodes only.
(() => {
  const CHUNK = 12; // rows added at a time while the reader scrolls
  const WORDS = { judge_failed: "judge failed", not_generated: "not generated" };

  function make(tag, properties = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name === "dataset") Object.assign(element.dataset, value);
      else if (name.startsWith("--")) element.style.setProperty(name, value);
      else if (name in element) element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
    return element;
  }

  const words = (name) => WORDS[name] || name.replaceAll("_", " ");
  const mean = (numbers) => numbers.reduce((a, b) => a + b, 0) / numbers.length;

  function format(value, scale) {
    if (scale <= 1) return value.toFixed(3);
    return Number.isInteger(value) ? String(value) : value.toFixed(1);
  }

  // ---------------------------------------------------------------- leaderboard

  function sortBoard(table, index) {
    const heads = [...table.tHead.rows[0].cells];
    const descending = heads[index].getAttribute("aria-sort") !== "descending";
    heads.slice(1).forEach((head) => head.setAttribute("aria-sort", "none"));
    heads[index].setAttribute("aria-sort", descending ? "descending" : "ascending");
    const body = table.tBodies[0];
    const value = (row) => row.cells[index].dataset.value;
    const rows = [...body.rows].sort((a, b) => {
      const x = value(a);
      const y = value(b);
      // a model without a number is neither best nor worst: it stays at the end
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
      return descending ? y - x : x - y;
    });
    body.append(...rows);
  }

  for (const button of document.querySelectorAll("table.board .sort")) {
    button.addEventListener("click", () => sortBoard(button.closest("table"), button.closest("th").cellIndex));
  }

  // ---------------------------------------------------------------- gallery

  class Gallery {
    constructor(root, data) {
      this.root = root;
      this.data = data;
      this.metric = 0;
      this.hidden = new Set();
      this.evaluators = data.models.map((_, m) => data.rows.flatMap((row) => row.cells[m]).find((item) => item.evaluator)?.evaluator);
      this.data.rows.forEach((row, order) => {
        row.order = order;
        row.text = row.prompt.toLowerCase();
      });
      this.rows = [];
      this.drawn = 0;
      this.build();
      this.refresh();
    }

    build() {
      const { data, root } = this;
      this.search = make("input", { type: "search", placeholder: "words of a prompt, or an item id", autocomplete: "off" });
      this.filters = Object.entries(data.filters).map(([name, values]) => [name, this.select(values.map((v) => [v, v]), "all")]);
      const states = [...new Set(data.rows.flatMap((row) => row.cells.flat().flatMap(Gallery.states)))].sort();
      this.state = this.select(states.map((name) => [name, words(name)]), "all");
      this.metricSelect = this.select(data.metrics.map((name, i) => [String(i), name]));
      this.order = this.select(this.orders());
      const title = make("h2", {}, data.benchmark);
      const tools = make("div", { className: "tools" },
        this.label("Search", this.search),
        ...this.filters.map(([name, select]) => this.label(words(name), select, true)),
        states.length > 1 ? this.label("Status", this.state, true) : null,
        data.metrics.length > 1 ? this.label("Score shown", this.metricSelect, true) : null,
        this.label("Order", this.order, true));
      this.table = make("div", { className: data.inputs.length ? "table edits" : "table" });
      this.end = make("div", { className: "end" });
      this.status = make("p", { className: "status", role: "status" });
      root.replaceChildren(make("section", { className: "card" }, title, this.cutNote(), tools, this.modelChoice(),
        this.status, this.table));
      this.search.addEventListener("input", () => this.refresh());
      tools.addEventListener("change", () => {
        this.metric = Number(this.metricSelect.value || 0);
        this.refresh();
      });
      new IntersectionObserver((entries) => {
        if (entries.some((entry) => entry.isIntersecting)) this.more();
      }, { rootMargin: "900px" }).observe(this.end);
    }

    select(options, all) {
      return make("select", {}, ...this.options(all ? [["", all], ...options] : options));
    }

    options(choices) {
      return choices.map(([value, text]) => make("option", { value }, text));
    }

    label(text, control, half) {
      return make("label", half ? { className: "half" } : {}, text, control);
    }

    orders() {
      const list = [["order", "as in the benchmark"]];
      if (!this.data.metrics.length) return list;
      const evaluators = new Set(this.visible().map((m) => this.evaluators[m]).filter(Boolean));
      // an average over models needs numbers of one evaluator
      if (evaluators.size < 2) list.push(["low", "lowest score first"], ["high", "highest score first"]);
      if (this.data.models.length > 1) {
        list.push(["gap", "largest difference between models"]);
        this.data.models.forEach((model, m) => list.push([`low-${m}`, `lowest of ${model.name} first`]));
      }
      return list;
    }

    offerOrders() {
      const chosen = this.order.value;
      this.order.replaceChildren(...this.options(this.orders()));
      this.order.value = chosen;
      if (!this.order.value) this.order.value = "order"; // no longer offered
    }

    cutNote() {
      const { shown, all, repetitions } = this.data;
      if (shown.items === all.items) return null;
      const parts = [];
      if (repetitions[0] < repetitions[1]) parts.push(`the first ${repetitions[0]} of ${repetitions[1]} images of each prompt`);
      if (shown.prompts < all.prompts) parts.push(`the first ${shown.prompts} of ${all.prompts} prompts`);
      return make("p", { className: "note" }, make("span", { className: "pill warn" }, "shortened"),
        ` To keep this file small it shows ${parts.join(" of ")}: ${shown.items} of ${all.items} items. All scores use every item.`);
    }

    modelChoice() {
      const { models } = this.data;
      if (models.length < 2) return null;
      const boxes = models.map((model, m) => {
        const box = make("input", { type: "checkbox", checked: true });
        box.addEventListener("change", () => {
          if (box.checked) this.hidden.delete(m);
          else this.hidden.add(m);
          this.offerOrders();
          this.refresh();
        });
        return make("label", {}, box, model.name);
      });
      return make("fieldset", { className: "models", "aria-label": "Models shown" }, ...boxes);
    }

    static states(item) {
      if (item.status !== "generated") return [item.status];
      return [["unparsed", "judge_failed", "stale"].includes(item.judged) ? item.judged : "generated"];
    }

    visible() {
      return this.data.models.map((_, m) => m).filter((m) => !this.hidden.has(m));
    }

    value(item) {
      return item.values ? item.values[this.metric] ?? null : null;
    }

    // The top of the range of the item's value.
    scale(item, metric = this.metric) {
      return this.data.scales[item.evaluator ?? ""][metric];
    }

    meanOf(row, m) {
      const numbers = row.cells[m].map((item) => this.value(item)).filter((v) => v !== null);
      return numbers.length ? mean(numbers) : null;
    }

    // Numbers of different evaluators are not compared: the gap is the widest within one evaluator.
    gap(row) {
      const byEvaluator = new Map();
      for (const m of this.visible()) {
        const value = this.meanOf(row, m);
        const name = this.evaluators[m];
        if (value !== null) byEvaluator.set(name, [...(byEvaluator.get(name) || []), value]);
      }
      const gaps = [...byEvaluator.values()].filter((v) => v.length > 1).map((v) => Math.max(...v) - Math.min(...v));
      return gaps.length ? Math.max(...gaps) : null;
    }

    sortKey(row) {
      const how = this.order.value;
      if (how === "order") return row.order;
      if (how === "gap") {
        const gap = this.gap(row);
        return gap === null ? null : -gap;
      }
      if (how.startsWith("low-")) return this.meanOf(row, Number(how.slice(4)));
      const means = this.visible().map((m) => this.meanOf(row, m)).filter((v) => v !== null);
      if (!means.length) return null;
      return how === "low" ? mean(means) : -mean(means);
    }

    matches(row, query) {
      // a short number is in nearly every id, so only a longer piece of one is taken for an id
      const named = query.length > 3 && row.cells.some((cell) => cell.some((item) => item.id.toLowerCase().includes(query)));
      if (!named && !query.split(/\s+/).every((term) => row.text.includes(term))) return false;
      if (!this.filters.every(([name, select]) => !select.value || row.keys[name] === select.value)) return false;
      const state = this.state.value;
      return !state || this.visible().some((m) => row.cells[m].some((item) => Gallery.states(item).includes(state)));
    }

    refresh() {
      const query = this.search.value.trim().toLowerCase();
      const keyed = this.data.rows.filter((row) => this.matches(row, query)).map((row) => [this.sortKey(row), row]);
      keyed.sort(([x, a], [y, b]) => {
        if (x === null || y === null) return (x === null) - (y === null) || a.order - b.order;
        return x - y || a.order - b.order;
      });
      this.rows = keyed.map(([, row]) => row);
      this.drawn = 0;
      const models = this.visible();
      this.table.scrollTo(0, 0);
      this.root.classList.toggle("wide", models.length > 5);
      this.table.style.setProperty("--models", models.length);
      this.table.replaceChildren(this.head(models), this.end);
      if (!this.rows.length) this.end.before(make("p", { className: "empty" }, "No prompt fits."));
      const total = this.data.rows.length;
      this.status.textContent = `${this.rows.length === total ? total : `${this.rows.length} of ${total}`} prompts`;
      this.more();
    }

    head(models) {
      const heads = models.map((m) => {
        const { name, evaluator, note } = this.data.models[m];
        const about = [this.data.inputs.length && "result", evaluator && `judged by ${evaluator}`, note].filter(Boolean);
        return make("div", {}, name, make("small", {}, about.join(" · ")));
      });
      const source = this.data.inputs.length ? make("div", {}, "Source") : null;
      return make("div", { className: "head" }, ...[make("div", {}, "Prompt"), source, ...heads].filter(Boolean));
    }

    more() {
      const until = Math.min(this.drawn + CHUNK, this.rows.length);
      const fresh = this.rows.slice(this.drawn, until).map((row) => this.row(row));
      this.drawn = until;
      this.end.before(...fresh);
      // a tall screen may still show the end: the observer only reports changes
      if (fresh.length && this.end.getBoundingClientRect().top < window.innerHeight + 900 && this.root.offsetParent) {
        requestAnimationFrame(() => this.more());
      }
    }

    row(row) {
      const long = row.prompt.length > 320 || row.prompt.split("\n").length > 8;
      const text = make("p", { className: long ? "prompt-text long" : "prompt-text" }, row.prompt || "(no prompt recorded)");
      const side = make("div", {}, text);
      if (long) {
        const more = make("button", { type: "button", className: "more" }, "show all");
        more.addEventListener("click", () => {
          more.textContent = text.classList.toggle("long") ? "show all" : "show less";
        });
        side.append(more);
      }
      const keys = Object.entries(row.keys).map(([name, value]) => make("span", { className: "pill", title: name }, value));
      if (keys.length) side.append(make("p", { className: "keys" }, ...keys));
      return make("article", { className: "row" }, side, ...(this.data.inputs.length ? [this.sources(row)] : []),
        ...this.visible().map((m) => this.cell(row, m)));
    }

    // What was edited: the same for all models, unless the benchmark's images have changed between their runs.
    sources(row) {
      const lists = new Map();
      for (const m of this.visible()) {
        for (const item of row.cells[m].filter((one) => one.inputs)) {
          if (!lists.has(item.inputs.join())) lists.set(item.inputs.join(), [m, item]);
        }
      }
      const thumbs = [...lists.values()].flatMap(([m, item]) => item.inputs.map((input, n) => {
        const label = this.sourceLabel(item, n) + (lists.size > 1 ? ` of ${this.data.models[m].name}` : "");
        const button = make("button", { type: "button", className: "thumb", "aria-label": `${label}, ${item.id}` },
          this.sourcePicture(input), make("div", { className: "caption" }, make("span", { className: "seed" }, label)));
        button.addEventListener("click", () => viewer.open(this, row, m, item));
        return button;
      }));
      return make("div", { className: "sources" }, make("p", { className: "cell-name" }, "source"), thumbs.length
        ? make("div", { className: thumbs.length > 1 ? "thumbs" : "thumbs one" }, ...thumbs)
        : make("p", { className: "muted" }, "not recorded"));
    }

    sourceLabel(item, n) {
      return item.inputs.length > 1 ? `source ${n + 1}` : "source";
    }

    cell(row, m) {
      const items = row.cells[m];
      const average = items.length > 1 ? this.meanOf(row, m) : null;
      const counted = items.filter((item) => this.value(item) !== null);
      const part = counted.length < items.length ? ` (${counted.length} of ${items.length})` : "";
      const thumbs = items.map((item) => this.thumb(row, m, item));
      return make("div", {}, make("p", { className: "cell-name" }, this.data.models[m].name),
        average === null ? null : make("p", { className: "mean" }, `mean ${format(average, this.scale(counted[0]))}${part}`),
        thumbs.length
          ? make("div", { className: thumbs.length > 1 ? "thumbs" : "thumbs one" }, ...thumbs)
          : make("p", { className: "muted" }, "not run"), ...this.rewritten(items));
    }

    // The prompts that the model was shown in place of the row's, each once: repetitions share theirs.
    rewritten(items) {
      const texts = new Map(items.filter((item) => item.rewritten).map(({ rewritten: [by, text] }) => [text, by]));
      return [...texts].map(([text, by]) => make("p", { className: "rewritten" }, make("span", { className: "muted" }, `${by}: `), text));
    }

    thumb(row, m, item) {
      const value = this.value(item);
      const score = this.scoreText(item);
      const seed = item.seed === undefined ? "" : make("span", { className: "seed", title: item.seedIgnored ? "the model takes no seed" : "" },
        `seed ${item.seed}${item.seedIgnored ? " (ignored)" : ""}`);
      const button = make("button", { type: "button", className: "thumb", "aria-label": `${this.data.models[m].name}, ${item.id}: ${score || words(item.status)}` },
        this.picture(item),
        make("div", { className: "caption" }, make("span", { className: value === null ? "score word" : "score" }, score), seed),
        value === null ? null : this.meter(value / this.scale(item)));
      button.addEventListener("click", () => viewer.open(this, row, m, item));
      return button;
    }

    scoreText(item) {
      const value = this.value(item);
      if (value !== null) return format(value, this.scale(item));
      if (item.status !== "generated") return "";
      return item.judged && item.judged !== "judged" ? words(item.judged) : "not scored";
    }

    meter(share) {
      const fill = make("i");
      fill.style.width = `${Math.min(1, Math.max(0, share)) * 100}%`;
      return make("div", { className: "meter" }, fill);
    }

    // The embedded thumbnail of an item or of an input image.
    thumbnail(of) {
      return of.picture === undefined ? "" : `data:image/webp;base64,${this.data.pictures[of.picture]}`;
    }

    framed(of) {
      const ratio = of.size ? `${of.size[0]} / ${of.size[1]}` : "1";
      return make("div", { className: "picture", "--ratio": ratio }, make("img", { src: this.thumbnail(of), alt: "", decoding: "async" }));
    }

    gone(kind, title, remark) {
      return make("div", { className: `picture gone ${kind}` }, make("p", {}, make("b", {}, title), make("span", {}, remark)));
    }

    sourcePicture(input) {
      const shown = this.data.inputs[input];
      return this.thumbnail(shown) ? this.framed(shown) : this.gone("source", "no copy", "it is missing, unreadable or not the one recorded");
    }

    picture(item) {
      if (this.thumbnail(item)) return this.framed(item);
      const [kind, text] = item.error || ["", ""];
      const remark = {
        blank: `placeholder${kind ? `: ${kind}` : ""}`,
        corrupt: item.reason || "the image is missing, unreadable or not the one recorded",
      }[item.status] ?? (text || kind);
      return this.gone(item.status, words(item.status), remark);
    }
  }

  // ---------------------------------------------------------------- viewer

  const viewer = {
    dialog: document.getElementById("viewer"),

    open(gallery, row, m, item) {
      this.gallery = gallery;
      this.row = row;
      this.m = m;
      this.item = item;
      const held = this.dialog.open && document.activeElement.getAttribute("aria-label");
      this.draw();
      if (!this.dialog.open) this.dialog.showModal();
      // redrawing takes the focus from the button just pressed: give it back to its successor
      const buttons = [...this.dialog.querySelectorAll("button")];
      (buttons.find((element) => element.getAttribute("aria-label") === held) || this.dialog).focus();
    },

    // Left and right walk through a row and on to the next; up and down keep the model and the repetition.
    step(columns, rows) {
      const { gallery } = this;
      const flat = (row) => gallery.visible().flatMap((m) => row.cells[m].map((item) => [m, item]));
      let r = gallery.rows.indexOf(this.row);
      if (rows) {
        const k = this.row.cells[this.m].indexOf(this.item);
        for (r += rows; gallery.rows[r]; r += rows) {
          const cell = gallery.rows[r].cells[this.m];
          if (cell.length) return this.open(gallery, gallery.rows[r], this.m, cell[Math.min(k, cell.length - 1)]);
        }
        return undefined;
      }
      let list = flat(this.row);
      let i = list.findIndex(([, item]) => item === this.item) + columns;
      while (!list[i]) {
        r += columns;
        if (!gallery.rows[r]) return undefined;
        list = flat(gallery.rows[r]);
        i = columns > 0 ? 0 : list.length - 1;
      }
      return this.open(gallery, gallery.rows[r], ...list[i]);
    },

    draw() {
      const { gallery, item } = this;
      const model = gallery.data.models[this.m];
      const button = (text, label, action) => {
        const element = make("button", { type: "button", "aria-label": label, title: label }, text);
        element.addEventListener("click", action);
        return element;
      };
      const bar = make("div", { className: "viewer-bar" }, make("h2", {}, model.name, make("span", { className: "muted" }, ` · ${item.id}`)),
        button("←", "previous image", () => this.step(-1, 0)), button("→", "next image", () => this.step(1, 0)),
        button("↑", "previous prompt", () => this.step(0, -1)), button("↓", "next prompt", () => this.step(0, 1)),
        button("✕", "close", () => this.dialog.close()));
      this.dialog.replaceChildren(make("div", { className: "viewer" }, bar, this.stage(model), this.side()));
    },

    stage(model) {
      const { gallery, item } = this;
      const file = `${model.folder}/${item.file}`;
      if (!gallery.data.inputs.length) {
        const result = gallery.thumbnail(item) ? this.figure("", item.id, "original file", file, item) : gallery.picture(item);
        return make("div", { className: "stage" }, result);
      }
      const result = this.figure("result", item.id, "original file", file, item, gallery.picture(item));
      const sources = (item.inputs || []).map((input, n) => {
        const label = gallery.sourceLabel(item, n);
        const shown = gallery.data.inputs[input];
        return this.figure(label, `${label} of ${item.id}`, "kept copy", shown.file, shown, gallery.sourcePicture(input));
      });
      if (!sources.length) sources.push(this.figure("source", "", "", "", {}, gallery.gone("source", "not recorded", "")));
      return make("div", { className: "stage edit" },
        make("div", { className: "sources", "--columns": sources.length > 2 ? 2 : 1 }, ...sources), result);
    },

    // The file beside the report (`what` it is, in words), else its thumbnail; `gone` where there is neither.
    figure(label, alt, what, file, of, gone) {
      const thumbnail = this.gallery.thumbnail(of);
      const caption = label ? [make("figcaption", {}, label)] : [];
      if (!thumbnail) return make("figure", {}, ...caption, gone);
      const note = make("p", { className: "muted" });
      const image = make("img", { alt });
      const original = file ? `./${file}` : thumbnail;
      const fallBack = () => {
        image.classList.add("small");
        note.textContent = `The ${what} is not next to this report: this is the embedded thumbnail.`;
      };
      image.addEventListener("error", () => {
        if (image.src === thumbnail) return;
        image.src = thumbnail;
        fallBack();
      });
      image.addEventListener("load", () => {
        if (image.src !== thumbnail) note.replaceChildren(make("a", { href: original, target: "_blank", rel: "noopener" }, `open the ${what}`));
      });
      image.src = original;
      if (!file) fallBack();
      return make("figure", {}, ...caption, image, note);
    },

    side() {
      const { gallery, item, row } = this;
      const side = make("div", { className: "side" });
      const section = (title, ...nodes) => side.append(make("h3", {}, title), ...nodes);
      const text = (value, extra = "") => make("p", { className: `text ${extra}` }, value);
      const list = (entries) => make("dl", {}, ...entries.flatMap(([name, value]) => [make("dt", {}, words(name)), make("dd", {}, String(value))]));
      if (item.error) section(item.status === "refused" ? "Refused, in the provider's words" : words(item.status), text(item.error[1] || item.error[0], "error"), make("p", { className: "muted" }, item.error[0]));
      const scores = (item.values || []).map((value, i) => [i, value]).filter(([, value]) => value !== null);
      if (scores.length) section("Scores", list(scores.map(([i, value]) => [gallery.data.metrics[i], format(value, gallery.scale(item, i))])));
      else if (item.judged) section("Scores", make("p", {}, words(item.judged)), item.reason ? text(item.reason) : "");
      for (const [name, value] of Object.entries(item.detail || {})) section(words(name), text(value));
      if (item.rewritten) section(`Prompt, ${item.rewritten[0]}`, text(item.rewritten[1]));
      section("Prompt", text(row.prompt || "(no prompt recorded)"));
      const seed = item.seed === undefined ? [] : [["seed", `${item.seed}${item.seedIgnored ? " (the model takes no seed)" : ""}`]];
      section("About", list([["status", words(item.status)], ...seed, ...Object.entries(item.facts || {}), ...Object.entries(row.keys),
        ...(item.evaluator ? [["evaluator", item.evaluator]] : []), ...(item.file ? [["file", decodeURIComponent(item.file)]] : [])]));
      return side;
    },
  };

  viewer.dialog.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    viewer.step(...move);
  });
  viewer.dialog.addEventListener("click", (event) => {
    if (event.target === viewer.dialog) viewer.dialog.close();
  });

  // ---------------------------------------------------------------- pages

  const views = [...document.querySelectorAll("main > div")];
  const built = new Map();
  let current = null;

  function show() {
    const wanted = decodeURIComponent(location.hash.slice(1));
    const view = views.find((v) => v.id === wanted) || current || views[0];
    if (view === current) return; // the skip link
    current = view;
    if (viewer.dialog.open) viewer.dialog.close();
    views.forEach((v) => { v.hidden = v !== view; });
    document.querySelectorAll("nav a").forEach((link) => {
      if (link.dataset.view === view.id) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    });
    if (view.classList.contains("gallery") && !built.has(view.id)) {
      const data = document.getElementById(view.id.replace("gallery", "data"));
      built.set(view.id, new Gallery(view, JSON.parse(data.textContent)));
      data.remove(); // parsed: its megabytes of text are not needed any more
    }
    window.scrollTo(0, 0);
  }

  const bar = document.querySelector(".top");
  new ResizeObserver(() => document.documentElement.style.setProperty("--top", `${bar.offsetHeight}px`)).observe(bar);
  window.addEventListener("hashchange", show);
  show();
})();
