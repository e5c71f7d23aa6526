// The filters of the queue. They are in the address, so that a link keeps them.
import { html, useEffect, useRef, useState } from "../lib.js";
import { useKeys } from "../keys.js";
import { refine } from "../route.js";
import { STATES, plural } from "../words.js";

/** @typedef {Event & {currentTarget: HTMLInputElement & HTMLSelectElement}} Changed */

/** How long a search waits for the next letter, in milliseconds. */
const PAUSE_MS = 150;
const GROUPS = [
  ["", "All", Object.keys(STATES)],
  ["running,starting,cancelling", "Running", ["running", "starting", "cancelling"]],
  ["queued", "Waiting", ["queued"]],
  ["held", "Held", ["held"]],
];

/** @param {{name: string, label: string, value: string, choices: string[]}} props */
function Choice({ name, label, value, choices }) {
  if (!choices.length && !value) return null;
  const all = value && !choices.includes(value) ? [value, ...choices] : choices;
  return html`
    <label class="choice">${label}
      <select value=${value} onChange=${(/** @type {Changed} */ event) => refine({ [name]: event.currentTarget.value || null })}>
        <option value="">any</option>
        ${all.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}
      </select>
    </label>
  `;
}

/** @param {{value: string}} props */
function Search({ value }) {
  const [text, setText] = useState(value);
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const timer = useRef(0);
  useEffect(() => {
    if (document.activeElement !== field.current) setText(value);
  }, [value]);
  useKeys({ "/": () => field.current?.focus() });
  /** @param {Changed} event */
  const typed = (event) => {
    const next = event.currentTarget.value;
    setText(next);
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => refine({ text: next.trim() || null }), PAUSE_MS);
  };
  return html`
    <label class="choice search">Search
      <input ref=${field} type="search" value=${text} onInput=${typed} placeholder="name, user, id, tag, note" maxlength="200" />
    </label>
  `;
}

/** @param {{me: import("../types.js").Me, query: Record<string, string>, table: import("../types.js").QueueTable}} props */
export function Filters({ me, query, table }) {
  const state = query.state ?? "";
  return html`
    <form class="filters" role="search" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <div class="tabs" role="group" aria-label="State">
        ${GROUPS.map(([value, label, names]) => html`
          <button type="button" aria-pressed=${state === value} onClick=${() => refine({ state: /** @type {string} */ (value) || null })}>
            ${label} <small>${/** @type {string[]} */ (names).reduce((sum, each) => sum + (table.counts[each] ?? 0), 0).toLocaleString()}</small>
          </button>`)}
      </div>
      ${me.account ? html`<label class="check"><input type="checkbox" checked=${Boolean(query.mine)}
        onChange=${(/** @type {Changed} */ event) => refine({ mine: event.currentTarget.checked ? "1" : null, user: null })} /> Mine</label>` : null}
      <${Search} value=${query.text ?? ""} />
      ${query.mine ? null : html`<${Choice} name="user" label="User" value=${query.user ?? ""} choices=${table.users} />`}
      <${Choice} name="tag" label="Tag" value=${query.tag ?? ""} choices=${table.tags} />
      <${Choice} name="pool" label="Pool" value=${query.pool ?? ""} choices=${table.pools} />
      <span class="found" role="status">${plural(table.total, "job")}</span>
    </form>
  `;
}
