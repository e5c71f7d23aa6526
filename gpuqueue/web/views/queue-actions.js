// What can be done with the selected jobs. The service refuses what the caller may not do, and the page says so.
import { change, read } from "../api.js";
import { html, useState } from "../lib.js";
import { useKeys } from "../keys.js";
import { mayChange, readsOnly, whyReadsOnly } from "../rights.js";
import { Dialog } from "../parts/dialog.js";
import { PRIORITIES, plural } from "../words.js";

/** @typedef {import("../types.js").QueueRow} QueueRow */

/** Requests at a time, and jobs that one selection may have. */
const AT_ONCE = 4;
const MOST = 2000;
const PAGE = 500;
const DONE = /** @type {Record<string, string>} */ ({ cancel: "cancelled", hold: "held", release: "released", priority: "changed", front: "moved to the front" });

/** @param {QueueRow} row @param {string} act @param {string} [value] */
function send(row, act, value) {
  if (act === "priority") return change("PATCH", `/jobs/${row.label}`, { priority: value });
  return act === "front" ? change("POST", `/jobs/${row.label}/move`, { front: true }) : change("POST", `/jobs/${row.label}/${act}`);
}

/** @param {QueueRow} row */
const canHold = (row) => row.state === "queued" || Boolean(row.members?.waiting);
/** @param {QueueRow} row */
const canRelease = (row) => row.state === "held" || Boolean(row.members?.held);

/** Members of a selected array go with it. @param {QueueRow[]} rows */
const whole = (rows) => {
  const arrays = new Set(rows.filter((each) => each.members).map((each) => each.id));
  return rows.filter((each) => each.array_id === null || !arrays.has(each.array_id));
};

/** Do *act* to all rows, some at a time. @param {QueueRow[]} rows @param {string} act @param {string | undefined} value @param {(done: number) => void} onStep */
async function toAll(rows, act, value, onStep) {
  const left = act === "front" ? [...rows].sort((one, other) => other.id - one.id) : [...rows]; // the last one moved goes first
  /** @type {string[]} */
  const refused = [];
  let done = 0;
  await Promise.all(Array.from({ length: act === "front" ? 1 : AT_ONCE }, async () => {
    for (let row = left.shift(); row; row = left.shift()) {
      try {
        await send(row, act, value);
      } catch (error) {
        refused.push(`${row.label}: ${/** @type {Error} */ (error).message}`);
      }
      done += 1;
      onStep(done);
    }
  }));
  return refused;
}

/** @param {{rows: QueueRow[], onYes: () => void, onNo: () => void}} props */
function Confirm({ rows, onYes, onNo }) {
  const active = rows.reduce((sum, { members, state }) => sum + (members ? members.running : Number(["running", "starting"].includes(state))), 0);
  const waiting = rows.reduce((sum, { members }) => sum + (members ? members.waiting + members.held : 0), 0);
  return html`
    <${Dialog} title=${`Cancel ${plural(rows.length, "job")}?`} onClose=${onNo}>
      <p>${active ? `${plural(active, "job runs", "jobs run")} now, and all processes of ${active === 1 ? "it" : "them"} are ended. ` : ""}${waiting ? `${plural(waiting, "member of an array waits", "members of arrays wait")}, and ${waiting === 1 ? "does" : "do"} not start. ` : ""}A cancelled job does not come back, but it can be run again as a new job.</p>
      <ul class="listed">
        ${rows.slice(0, 8).map((each) => html`<li>${each.label} <bdi>${each.name}</bdi> <small><bdi>${each.user}</bdi></small></li>`)}
        ${rows.length > 8 ? html`<li>and ${plural(rows.length - 8, "more job")}</li>` : null}
      </ul>
      <p class="actions">
        <button type="button" class="danger" onClick=${onYes}>Cancel ${plural(rows.length, "job")}</button>
        <button type="button" onClick=${onNo} autofocus>Keep them</button>
      </p>
    <//>
  `;
}

/**
 * @param {object} props
 * @param {import("../types.js").Me} props.me
 * @param {Map<number, QueueRow>} props.selected
 * @param {Record<string, any>} props.question
 * @param {number} props.total
 * @param {(selected: Map<number, QueueRow>) => void} props.onSelect
 * @param {() => void} props.onDone
 */
export function Actions({ me, selected, question, total, onSelect, onDone }) {
  const [asks, setAsks] = useState(false);
  const [says, setSays] = useState(/** @type {{words: string, refused: string[]} | null} */ (null));
  const [isBusy, setBusy] = useState(false);
  const rows = whole([...selected.values()]);
  const count = rows.length;

  /** @param {string} act @param {string} [value] */
  const act = async (act, value) => {
    if (!count || isBusy) return;
    setAsks(false);
    setBusy(true);
    const refused = await toAll(rows, act, value, (done) => setSays({ words: `${done} of ${plural(count, "job")}…`, refused: [] }));
    setSays({ words: `${plural(count - refused.length, "job")} ${DONE[act]}.${refused.length ? ` ${refused.length} refused.` : ""}`, refused });
    setBusy(false);
    onSelect(new Map());
    onDone();
  };
  const selectAll = async () => {
    /** @type {Map<number, QueueRow>} */
    const all = new Map();
    setBusy(true);
    try {
      for (let offset = 0; offset < Math.min(total, MOST); offset += PAGE) {
        const page = await read("/queue-table", { ...question, offset, limit: PAGE });
        for (const each of page.rows) if (mayChange(me, each)) all.set(each.id, each);
      }
      onSelect(all);
    } catch (error) {
      setSays({ words: /** @type {Error} */ (error).message, refused: [] });
    } finally {
      setBusy(false);
    }
  };
  useKeys({
    c: () => count && setAsks(true),
    h: () => rows.some(canHold) && act("hold"),
    r: () => rows.some(canRelease) && act("release"),
    Escape: () => onSelect(new Map()),
  });

  return html`
    <div class=${`selection ${count || says ? "open" : ""}`} role="region" aria-label="Selected jobs">
      ${count ? html`
        <strong>${plural(count, "job")} selected</strong>
        <button type="button" disabled=${isBusy} onClick=${() => setAsks(true)}>Cancel…</button>
        ${rows.some(canHold) ? html`<button type="button" disabled=${isBusy} onClick=${() => act("hold")}>Hold</button>` : null}
        ${rows.some(canRelease) ? html`<button type="button" disabled=${isBusy} onClick=${() => act("release")}>Release</button>` : null}
        ${rows.every((each) => each.state === "queued" && each.array_id === null) ? html`<button type="button" disabled=${isBusy} onClick=${() => act("front")} title="Before the other waiting jobs of their users">To the front</button>` : null}
        <label class="choice">Priority
          <select disabled=${isBusy} value="" onChange=${(/** @type {any} */ event) => { act("priority", event.currentTarget.value); event.currentTarget.value = ""; }}>
            <option value="">set…</option>${PRIORITIES.map((each) => html`<option value=${each}>${each}</option>`)}
          </select>
        </label>
        ${total > count ? html`<button type="button" class="plain" disabled=${isBusy} onClick=${selectAll}>Select all that match and that I may change</button>` : null}
        <button type="button" class="plain" onClick=${() => onSelect(new Map())}>Select none</button>
      ` : says ? null : html`<span>${readsOnly(me) ? whyReadsOnly(me) : "Select jobs to cancel, hold, release or move them."}</span>`}
      <span role="status">${says && !count ? says.words : isBusy ? says?.words : ""}</span>
      ${says && !count && says.refused.length ? html`<details><summary>Why</summary><ul>${says.refused.slice(0, 20).map((each) => html`<li>${each}</li>`)}</ul></details>` : null}
      ${says && !count && !isBusy ? html`<button type="button" class="plain" onClick=${() => setSays(null)}>Close</button>` : null}
    </div>
    ${asks && count ? html`<${Confirm} rows=${rows} onYes=${() => act("cancel")} onNo=${() => setAsks(false)} />` : null}
  `;
}
