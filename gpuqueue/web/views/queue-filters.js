// The filters of the queue. They are in the address, so that a link keeps them.
import { html } from "../lib.js";
import { FlagFilter, SelectFilter, TextFilter, filter } from "../parts/filter-fields.js";
import { Tabs } from "../parts/tabs.js";
import { link } from "../route.js";
import { plural } from "../words.js";
import { toRows } from "./queue-rows.js";

/** @type {[string, string, string[]][]} */
const GROUPS = [
  ["", "All", ["running", "starting", "cancelling", "queued", "held"]],
  ["running,starting,cancelling", "Running", ["running", "starting", "cancelling"]],
  ["queued", "Queued", ["queued"]],
  ["held", "Held", ["held"]],
];

/** @param {string[]} names @returns {[string, string][]} */
const named = (names) => names.map((each) => [each, each]);

/** @param {{me: import("../types.js").Me, query: Record<string, string>, table: import("../types.js").QueueTable}} props */
export function Filters({ me, query, table }) {
  const groups = GROUPS.map(([value, label, names]) => /** @type {[string, any]} */ ([value, html`${label} <small>${names.reduce((sum, each) => sum + (table.counts[each] ?? 0), 0).toLocaleString()}</small>`]));
  return html`
    <form class="filters" role="search" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <${Tabs} label="State" choices=${groups} chosen=${query.state ?? ""} onChoose=${(/** @type {string} */ value) => filter({ state: value || null })} />
      ${me.account ? html`<${FlagFilter} name="mine" label="Mine" value=${query.mine} instead=${{ user: null }} />` : null}
      ${table.idle || query.idle ? html`<${FlagFilter} name="idle" label=${html`Idle <small>${table.idle}</small>`} value=${query.idle} />` : null}
      <${TextFilter} name="text" label="Search" type="search" value=${query.text} placeholder="name, user, id, tag, note" hotkey="/" onLeave=${toRows} />
      ${query.mine ? null : html`<${SelectFilter} name="user" label="User" value=${query.user} choices=${named(table.users)} />`}
      <${SelectFilter} name="tag" label="Tag" value=${query.tag} choices=${named(table.tags)} />
      <${SelectFilter} name="pool" label="Pool" value=${query.pool} choices=${named(table.pools)} />
      <a href=${link("history", { mine: query.mine, user: query.user, tag: query.tag })}>Ended jobs</a>
      <span class="found" role="status">${plural(table.total, "job")}</span>
    </form>
  `;
}
