"use strict";
// Sorting and filtering of the tables of examples. Rows are in the page; without this script they stay in their order.
document.documentElement.classList.add("script");
for (const explorer of document.querySelectorAll(".explorer")) {
  const name = explorer.dataset.for;
  const table = document.getElementById(name);
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const search = document.getElementById(name + "-search");
  const group = document.getElementById(name + "-group");
  const count = document.getElementById(name + "-count");
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));

  function filter() {
    const wanted = search.value.trim().toLowerCase();
    const kind = group ? group.value : "";
    let shown = 0;
    for (const row of rows) {
      row.hidden = !(texts.get(row).includes(wanted) && (!kind || row.dataset.group === kind));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = shown + " of " + rows.length + " shown";
  }

  function sort(header, place) {
    const ascending = header.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const key = (row) => {
      const cell = row.cells[place];
      return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
    };
    const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
    rows.sort((a, b) => (ascending ? 1 : -1) * order(key(a), key(b)));
    body.append(...rows);
  }

  Array.from(table.tHead.rows[0].cells).forEach((header, place) => {
    header.querySelector("button").addEventListener("click", () => sort(header, place));
  });
  search.addEventListener("input", filter);
  if (group) group.addEventListener("change", filter);
  explorer.querySelector(".controls").hidden = false;
  filter();
}
