// The filters of the history: those of `gpuqueue history`. They are in the address, so that a link keeps them.
import { html } from "../lib.js";
import { Download } from "../parts/download.js";
import { FlagFilter, SelectFilter, TextFilter, filter } from "../parts/filter-fields.js";
import { PeriodChoice } from "../parts/period-choice.js";
import { Tabs } from "../parts/tabs.js";
import { secondsOf } from "../period.js";
import { bytesOf } from "../words.js";

const STATES = [["", "Ended"], ["succeeded", "Succeeded"], ["failed,lost", "Failed"], ["cancelled", "Cancelled"], ["queued,held,starting,running,cancelling", "Not ended"], ["all", "All"]];
const ENDINGS = ["exited", "signalled", "out_of_memory", "timed_out", "cancelled", "preempted", "idle", "wrong_device", "nan", "stalled", "refused", "lost"];
/** The filters that are shown on demand only. */
export const FURTHER = ["ending", "exit_code", "device", "model", "host", "min_peak", "min_duration", "max_duration", "text"];

/** @param {string} text */
const sizeFault = (text) => (bytesOf(text) === null ? "write a size such as 20G" : null);
/** @param {string} text */
const durationFault = (text) => (secondsOf(text) === null ? "write a time such as 90s, 15m or 2h" : null);
/** @param {string} text */
const codeFault = (text) => (/^\d{1,3}$/.test(text) && Number(text) <= 255 ? null : "a code is a number from 0 to 255");

/** @param {{query: Record<string, string>}} props */
function Further({ query }) {
  const isUsed = FURTHER.some((each) => query[each]);
  return html`
    <details class="further" open=${isUsed}>
      <summary>More filters</summary>
      <div class="filters">
        <${SelectFilter} name="ending" label="Ending" value=${query.ending} choices=${ENDINGS.map((each) => [each, each.replaceAll("_", " ")])} />
        <${TextFilter} name="exit_code" label="Exit code" value=${query.exit_code} placeholder="137" check=${codeFault} />
        <${TextFilter} name="device" label="Device" value=${query.device} placeholder="nodeA:0" />
        <${TextFilter} name="model" label="Model" value=${query.model} placeholder="A100" />
        <${TextFilter} name="host" label="Host" value=${query.host} placeholder="nodeA" />
        <${TextFilter} name="min_peak" label="Peak at least" value=${query.min_peak} placeholder="20G" check=${sizeFault} />
        <${TextFilter} name="min_duration" label="Ran at least" value=${query.min_duration} placeholder="2h" check=${durationFault} />
        <${TextFilter} name="max_duration" label="and at most" value=${query.max_duration} placeholder="1d" check=${durationFault} />
        <${TextFilter} name="text" label="Command or note" value=${query.text} placeholder="lr 1e-3" />
      </div>
    </details>
  `;
}

/** @param {{me: import("../types.js").Me, query: Record<string, string>, users: string[], csv: string}} props */
export function HistoryFilters({ me, query, users, csv }) {
  return html`
    <form role="search" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <div class="filters">
        <${Tabs} label="State" kind="states-choice" choices=${STATES} chosen=${query.state ?? ""} onChoose=${(/** @type {string} */ value) => filter({ state: value || null })} />
        ${me.account ? html`<${FlagFilter} name="mine" label="Mine" value=${query.mine} instead=${{ user: null }} />` : null}
        <${PeriodChoice} query=${query} usual="" />
        ${query.mine ? null : html`<${TextFilter} name="user" label="User" value=${query.user} choices=${users} />`}
        <${TextFilter} name="name" label="Name" value=${query.name} placeholder="part, sweep*" />
        <${TextFilter} name="tag" label="Tag" value=${query.tag} />
        <${Download} kind="csv" path=${csv} title="All jobs that match, at most 100 000">CSV<//>
      </div>
      <${Further} query=${query} />
    </form>
  `;
}
