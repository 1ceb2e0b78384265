"use strict";
// Theme, sorting, filters, switching parts of figures, a read-out under the pointer. Works offline.
(() => {
  const all = (root, selector) => [...root.querySelectorAll(selector)];

  const theme = document.getElementById("theme");
  const isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const show = () => theme.setAttribute("aria-pressed", String(isDark()));
  theme.hidden = false;
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();

  const contents = document.querySelector("nav details");
  if (matchMedia("(max-width: 62rem)").matches) contents.open = false;

  const keyOf = (row, column) => {
    const cell = row.cells[column];
    const number = cell.querySelector("[data-value]");
    return number ? Number(number.dataset.value) : cell.textContent.trim();
  };
  const compare = (a, b, up) => {
    const kinds = [typeof a === "number", typeof b === "number"];
    if (kinds[0] !== kinds[1]) return kinds[0] ? -1 : 1;
    const order = kinds[0] ? a - b : a.localeCompare(b, "en", { numeric: true });
    return up ? order : -order;
  };
  all(document, "button.sort").forEach((button) => {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const up = head.getAttribute("aria-sort") !== "ascending";
      const body = button.closest("table").tBodies[0];
      const column = head.cellIndex;
      all(head.parentNode, "th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      [...body.rows]
        .map((row) => [keyOf(row, column), row])
        .sort((a, b) => compare(a[0], b[0], up))
        .forEach(([, row]) => body.append(row));
    });
  });

  all(document, "select[data-filter]").forEach((select) => {
    select.addEventListener("change", () => {
      const rows = select.closest(".table").querySelector("tbody").rows;
      for (const row of rows) {
        const text = row.cells[Number(select.dataset.filter)].textContent.trim();
        row.hidden = select.value !== "" && text !== select.value;
      }
    });
  });

  all(document, "input[data-toggle]").forEach((box) => {
    box.addEventListener("change", () => {
      all(box.closest("figure"), "svg [data-toggle]")
        .filter((part) => part.dataset.toggle === box.dataset.toggle)
        .forEach((part) => { part.style.display = box.checked ? "" : "none"; });
    });
  });

  const at = (share, [low, high], log) =>
    log ? Math.exp(Math.log(low) + share * (Math.log(high) - Math.log(low))) : low + share * (high - low);
  const shown = (value) => Number(value.toPrecision(4)).toLocaleString("en");
  all(document, "figure[data-axes]").forEach((figure) => {
    const svg = figure.querySelector("svg");
    const output = figure.querySelector("output");
    const axes = JSON.parse(figure.dataset.axes);
    const drawing = figure.querySelector(".drawing");
    const zoom = document.createElement("button");
    zoom.type = "button";
    zoom.className = "zoom";
    zoom.textContent = "Enlarge";
    zoom.setAttribute("aria-pressed", "false");
    zoom.setAttribute("aria-label", `Enlarge: ${drawing.getAttribute("aria-label")}`);
    zoom.addEventListener("click", () => {
      zoom.setAttribute("aria-pressed", String(drawing.classList.toggle("big")));
    });
    figure.querySelector(".figure-bar").append(zoom);
    svg.addEventListener("pointermove", (event) => {
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      const axis = axes.find(({ box: [l, t, r, b] }) => point.x >= l && point.x <= r && point.y >= t && point.y <= b);
      output.textContent = "";
      if (!axis) return;
      const [l, t, r, b] = axis.box;
      const shares = [(point.x - l) / (r - l), (b - point.y) / (b - t)];
      const parts = [0, 1]
        .filter((i) => !axis.labelled[i])
        .map((i) => `${axis.words[i] || "xy"[i]}: ${shown(at(shares[i], i ? axis.y : axis.x, axis.log[i]))}`);
      output.textContent = parts.join(", ");
    });
    svg.addEventListener("pointerleave", () => { output.textContent = ""; });
  });

  const links = new Map(all(document, "nav a").map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
      links.forEach((link) => link.removeAttribute("aria-current"));
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    });
  }, { rootMargin: "-10% 0px -80% 0px" });
  all(document, "main > section").forEach((section) => seen.observe(section));

  addEventListener("beforeprint", () => all(document, "details").forEach((fold) => { fold.open = true; }));
})();
