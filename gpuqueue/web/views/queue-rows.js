// The table of jobs. Only the rows in sight are in the document, however many jobs there are.
import { html, useCallback, useEffect, useLayoutEffect, useRef, useState } from "../lib.js";
import { useKeys } from "../keys.js";
import { useNow } from "../now.js";
import { mayChange } from "../rights.js";
import { jobLink } from "../route.js";
import { QueueRowView, SkeletonRow } from "./queue-row.js";

/** @typedef {import("../types.js").QueueRow} QueueRow */

/** Rows that are asked for at a time, and the step by which that part moves. */
export const ROWS_AT_ONCE = 150;
const STEP = 50;
/** Rows above and below the ones in sight, and the step by which the drawn part moves. */
const SPARE = 8;
const DRAWN_STEP = 4;
/** Rows that are kept as they were drawn. */
const MOST_DRAWN = 1000;
const ROWS_ID = "job-rows";
/** The heights of a row, which the style sheets have too. */
const [DESK_PX, PHONE_PX] = [32, 88];
const NARROW = matchMedia("(max-width: 720px)");
const COLUMNS = [
  ["id", "Job", "id"],
  ["name", "Name", "name"],
  ["user", "User", "user"],
  ["state", "State", "state"],
  ["mem", "Memory", "mem"],
  ["priority", "Priority", "priority"],
  ["submitted", "Submitted", "time"],
];

/** Go from the search to the jobs. The first one is marked then. Without a job to go to, the field is left. */
export function toRows() {
  const rows = document.getElementById(ROWS_ID);
  if (rows) rows.focus();
  else if (document.activeElement instanceof HTMLElement) document.activeElement.blur();
}

/** The height of a row is fixed, so that the place of each is known. */
function useRowHeight() {
  const [height, setHeight] = useState(NARROW.matches ? PHONE_PX : DESK_PX);
  useEffect(() => {
    const changed = () => setHeight(NARROW.matches ? PHONE_PX : DESK_PX);
    NARROW.addEventListener("change", changed);
    return () => NARROW.removeEventListener("change", changed);
  }, []);
  return height;
}

/** Whether the keyboard is at the list itself. A click on it marks nothing. @param {HTMLElement | null} box */
const isReached = (box) => box !== null && document.activeElement === box && box.matches(":focus-visible");

/**
 * Keeps each row as it was drawn while nothing that it shows has changed. Preact then passes it over.
 * @returns {(id: number, props: Record<string, any>, draw: () => any) => any}
 */
function useDrawn() {
  const known = useRef(/** @type {Map<number, {props: Record<string, any>, node: any}>} */ (new Map()));
  return (id, props, draw) => {
    const was = known.current.get(id);
    if (was && Object.keys(props).every((name) => Object.is(was.props[name], props[name]))) return was.node;
    const node = draw();
    if (known.current.size > MOST_DRAWN) known.current.clear();
    known.current.set(id, { props, node });
    return node;
  };
}

/**
 * @param {object} props
 * @param {import("../types.js").Me} props.me
 * @param {import("../types.js").QueueTable} props.table
 * @param {string} props.listKey
 * @param {string} props.sort
 * @param {string} props.order
 * @param {Map<number, QueueRow>} props.selected
 * @param {Record<number, import("../types.js").JobPlace>} props.places
 * @param {Record<number, import("../types.js").Progress>} props.progress
 * @param {(column: string) => void} props.onSort
 * @param {(selected: Map<number, QueueRow>) => void} props.onSelect
 * @param {(first: number) => void} props.onWindow
 * @param {(rows: QueueRow[]) => void} props.onShown
 */
export function QueueRows({ me, table, listKey, sort, order, selected, places, progress, onSort, onSelect, onWindow, onShown }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [view, setView] = useState({ top: 0, height: 600 });
  const [focused, setFocused] = useState(-1);
  const anchor = useRef(-1);
  const height = useRowHeight();
  const now = useNow(table.at);
  const drawn = useDrawn();

  const measure = useCallback(() => {
    if (!box.current) return;
    const grain = height * DRAWN_STEP; // most scroll events change nothing that is drawn
    const top = Math.floor(box.current.scrollTop / grain) * grain;
    const seen = box.current.clientHeight + grain;
    setView((was) => (was.top === top && was.height === seen ? was : { top, height: seen }));
  }, [height]);
  useLayoutEffect(() => {
    if (box.current) box.current.scrollTop = 0;
    setFocused(isReached(box.current) ? 0 : -1);
    measure();
  }, [listKey]);
  useEffect(() => {
    const watcher = new ResizeObserver(measure);
    if (box.current) watcher.observe(box.current);
    return () => watcher.disconnect();
  }, [measure]);

  const from = Math.max(0, Math.floor(view.top / height) - SPARE);
  const to = Math.min(table.total, Math.ceil((view.top + view.height) / height) + SPARE);
  const wanted = Math.max(0, Math.floor((from - SPARE) / STEP) * STEP);
  useEffect(() => onWindow(wanted), [wanted]);
  /** @param {number} place @returns {QueueRow | undefined} */
  const rowAt = (place) => table.rows[place - table.offset];
  const inSight = [];
  for (let place = from; place < to; place += 1) inSight.push(place);
  const shown = /** @type {QueueRow[]} */ (inSight.map(rowAt).filter(Boolean));
  const shownKey = shown.map((each) => `${each.id}${each.state}`).join();
  useEffect(() => onShown(shown), [shownKey]);

  /** @param {number} place @param {boolean} isRange */
  const toggle = (place, isRange) => {
    const row = rowAt(place);
    if (!row || !mayChange(me, row)) return;
    const next = new Map(selected);
    const isOn = !selected.has(row.id);
    const start = isRange && anchor.current >= 0 ? anchor.current : place;
    for (let each = Math.min(start, place); each <= Math.max(start, place); each += 1) {
      const found = rowAt(each);
      if (!found || !mayChange(me, found)) continue;
      if (isOn) next.set(found.id, found);
      else next.delete(found.id);
    }
    anchor.current = place;
    onSelect(next);
  };
  const latest = useRef(toggle);
  latest.current = toggle;
  const toggled = useCallback((/** @type {number} */ place, /** @type {boolean} */ isRange) => latest.current(place, isRange), []);
  const changeable = table.rows.filter((each) => mayChange(me, each));
  const isAll = changeable.length > 0 && changeable.every((each) => selected.has(each.id));
  const toggleAll = () => onSelect(isAll ? new Map() : new Map([...selected, ...changeable.map((each) => /** @type {[number, QueueRow]} */ ([each.id, each]))]));

  /** @param {FocusEvent} event */
  const reached = (event) => {
    if (event.target === box.current && focused < 0 && isReached(box.current)) setFocused(Math.round(view.top / height));
  };
  /** @param {number} by */
  const move = (by) => {
    const next = Math.min(table.total - 1, Math.max(0, focused < 0 ? from : focused + by));
    setFocused(next);
    const shownBox = box.current;
    if (!shownBox) return;
    const head = height + 4;
    if (next * height < shownBox.scrollTop) shownBox.scrollTop = next * height;
    else if ((next + 1) * height + head > shownBox.scrollTop + shownBox.clientHeight) shownBox.scrollTop = (next + 1) * height + head - shownBox.clientHeight;
  };
  /** @param {number} place */
  const open = (place) => {
    const row = rowAt(place);
    if (row) location.hash = jobLink(row.label);
  };
  useKeys({ j: () => move(1), k: () => move(-1), x: (event) => focused >= 0 && toggle(focused, event.shiftKey), o: () => open(focused), Enter: () => open(focused) });

  return html`
    <div id=${ROWS_ID} class="rows" ref=${box} onScroll=${measure} onFocus=${reached} tabindex="0" role="region" aria-label="Jobs, scrollable">
      <table class="queue-table" aria-label="Jobs" aria-rowcount=${table.total + 1}>
        <thead><tr aria-rowindex="1">
          <th scope="col" class="pick">${changeable.length ? html`<input type="checkbox" checked=${isAll} onChange=${toggleAll} aria-label="Select the jobs shown" />` : html`<span class="hidden">Selection</span>`}</th>
          ${COLUMNS.map(([name, label, kind]) => html`
            <th scope="col" class=${kind} aria-sort=${sort === name ? (order === "down" ? "descending" : "ascending") : undefined}>
              <button type="button" class="head" onClick=${() => onSort(name)}>${label}<span aria-hidden="true" class="arrow">${sort === name ? (order === "down" ? "↓" : "↑") : ""}</span></button>
            </th>`)}
          <th scope="col" class="story" aria-sort=${sort === "place" ? (order === "down" ? "descending" : "ascending") : undefined}>
            <button type="button" class="head" onClick=${() => onSort("place")} title="Sort by the place in line">What it does, or why it waits<span aria-hidden="true" class="arrow">${sort === "place" ? (order === "down" ? "↓" : "↑") : ""}</span></button></th>
        </tr></thead>
        <tbody>
          ${from > 0 ? html`<tr key="above" class="space" aria-hidden="true"><td colspan="9" style=${{ height: `${from * height}px` }}></td></tr>` : null}
          ${inSight.map((place) => {
            const row = rowAt(place);
            if (!row) return html`<${SkeletonRow} key=${`empty${place}`} place=${place} />`;
            const props = {
              row, place, may: mayChange(me, row), isSelected: selected.has(row.id), isFocused: place === focused,
              now: row.started_at ? now : 0, jobPlace: places[row.id], progress: progress[row.id],
            };
            return drawn(row.id, props, () => html`<${QueueRowView} key=${row.id} ...${props} onToggle=${toggled} />`);
          })}
          ${to < table.total ? html`<tr key="below" class="space" aria-hidden="true"><td colspan="9" style=${{ height: `${(table.total - to) * height}px` }}></td></tr>` : null}
        </tbody>
      </table>
    </div>
  `;
}
