
"use strict";
// Sorting and filtering for every element with data-tool. The page is complete without this script.
(function () {
  function key(cell, isNumber) {
    var text = cell.textContent.trim();
    if (!isNumber) return text.toLowerCase();
    var value = parseFloat(text.replace(/[,%]/g, "").replace("\u2212", "-").replace("\u221e", "Infinity"));
    return isNaN(value) ? null : value;
  }
  function compare(a, b, sign) {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (typeof a === "string" ? a.localeCompare(b) : a - b);
  }
  function tools(owner, items, what) {
    var box = document.createElement("div"), label = document.createElement("label");
    var input = document.createElement("input"), said = document.createElement("output");
    var region = owner.closest(".scroll") || owner;
    box.className = "tools";
    input.type = "search";
    input.id = owner.id + "-filter";
    label.htmlFor = input.id;
    label.textContent = "Filter " + what + ":";
    said.setAttribute("for", input.id);
    said.setAttribute("role", "status");
    var texts = items.map(function (item) { return (item.querySelector("summary") || item).textContent.toLowerCase(); });
    function filter() {
      var words = input.value.toLowerCase().split(/\s+/), kept = 0;
      items.forEach(function (item, k) {
        var fits = words.every(function (word) { return texts[k].indexOf(word) >= 0; });
        item.hidden = !fits;
        kept += fits;
      });
      said.textContent = kept.toLocaleString("en") + " of " + items.length.toLocaleString("en") + " shown";
    }
    input.addEventListener("input", filter);
    input.addEventListener("keydown", function (event) {
      if (event.key === "Escape") { input.value = ""; filter(); }
    });
    box.append(label, input, said);
    region.before(box);
    filter();
    return said;
  }
  function sortable(table, said) {
    var body = table.tBodies[0], heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach(function (head, column) {
      if (!head.textContent) return;
      var button = document.createElement("button"), isNumber = !head.classList.contains("text");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", function () {
        var now = head.getAttribute("aria-sort");
        var next = now ? (now === "descending" ? "ascending" : "descending") : (isNumber ? "descending" : "ascending");
        var rows = Array.from(body.rows), sign = next === "ascending" ? 1 : -1;
        var keys = new Map(rows.map(function (row) { return [row, key(row.cells[column], isNumber)]; }));
        rows.sort(function (a, b) { return compare(keys.get(a), keys.get(b), sign); });
        heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", next);
        body.append.apply(body, rows);
        said.textContent = "Sorted by " + button.textContent + ", " + next;
      });
    });
  }
  document.querySelectorAll("[data-tool]").forEach(function (owner) {
    var items = Array.from(owner.tBodies ? owner.tBodies[0].rows : owner.children);
    var said = tools(owner, items, owner.dataset.tool);
    if (owner.tBodies) sortable(owner, said);
  });
  function open() {
    var target = /^#g\d+$/.test(location.hash) && document.getElementById(location.hash.slice(1));
    if (target) { target.hidden = false; target.open = true; target.scrollIntoView(); target.querySelector("summary").focus(); }
  }
  window.addEventListener("hashchange", open);
  open();
})();
