// What can be done with the chosen members of an array: cancel those that have not ended, run failed ones again.
import { change, noted } from "../api.js";
import { isEnd } from "../job-states.js";
import { html, useState } from "../lib.js";
import { Dialog } from "../parts/dialog.js";
import { Fault } from "../parts/field.js";
import { jobLink } from "../route.js";
import { plural } from "../words.js";
import { RunAgain } from "./job-again.js";

/** @typedef {import("../job-types.js").JobView} JobView */
/** @typedef {import("../job-types.js").MemberRow} MemberRow */

/** The name of some members of an array: 17_2,5-9. @param {string} id @param {MemberRow[]} rows */
export function partOf(id, rows) {
  /** @type {[number, number][]} */
  const ranges = [];
  for (const index of rows.map((each) => each.index).sort((one, other) => one - other)) {
    const last = ranges.at(-1);
    if (last && index === last[1] + 1) last[1] = index;
    else ranges.push([index, index]);
  }
  return `${id}_${ranges.map(([from, to]) => (from === to ? from : `${from}-${to}`)).join(",")}`;
}

/**
 * @param {object} props
 * @param {string} props.id
 * @param {JobView} props.view
 * @param {MemberRow[]} props.rows the chosen ones
 * @param {() => void} props.onNone
 * @param {() => void} props.onChange
 */
export function ChosenMembers({ id, view, rows, onNone, onChange }) {
  const [asks, setAsks] = useState(/** @type {"cancel" | "again" | null} */ (null));
  const [says, setSays] = useState(/** @type {any} */ (null));
  const [fault, setFault] = useState(/** @type {string | null} */ (null));
  const { rights } = view;
  const left = rows.filter((each) => each.state === null || !isEnd(each.state));
  const failed = rows.length === 1 && left.length === 0 ? rows : rows.filter((each) => ["failed", "lost"].includes(each.state ?? ""));
  const part = partOf(id, asks === "again" ? failed : left);
  /** @param {"cancel" | "again" | null} next */
  const ask = (next) => {
    setFault(null);
    setAsks(next);
  };
  /** @param {() => Promise<any>} work */
  const act = async (work) => {
    try {
      setSays(await work());
      ask(null);
      onNone();
    } catch (error) {
      setFault(noted(error).message);
    }
    onChange();
  };
  const cancel = () => act(() => change("POST", `/jobs/${part}/cancel`).then(() => `Cancelled: ${plural(left.length, "member")}.`));
  /** @param {string} mem */
  const again = (mem) => act(async () => {
    const job = await change("POST", `/jobs/${part}/retry`, { changes: mem ? { mem } : {} });
    return html`${failed.length === 1 ? "It runs" : "They run"} again as <a href=${jobLink(job.id)}>job ${job.id}</a>.`;
  });
  if (!rows.length) return html`<p role="status">${says}</p>`;
  return html`
    <div class="selection open" role="region" aria-label="Chosen members">
      <strong>${plural(rows.length, "member")} chosen</strong>
      ${rights.change && left.length ? html`<button type="button" onClick=${() => ask("cancel")}>Cancel ${left.length === rows.length ? "" : left.length.toLocaleString()}…</button>` : null}
      ${rights.retry && failed.length ? html`<button type="button" onClick=${() => ask("again")}>Run ${failed.length === rows.length ? "" : failed.length === 1 ? "the failed one " : `the ${failed.length.toLocaleString()} failed ones `}again…</button>` : null}
      <button type="button" class="plain" onClick=${onNone}>Choose none</button>
    </div>
    ${asks === "cancel" ? html`
      <${Dialog} title=${`Cancel ${plural(left.length, "member")} of array ${id}?`} onClose=${() => ask(null)}>
        <p>${part}: those that run are ended, and the others do not start. A cancelled member does not come back, but it can be run again as a new job.</p>
        <${Fault} id="cancel-members" words=${fault} />
        <p class="actions"><button type="button" class="danger" onClick=${cancel}>Cancel ${plural(left.length, "member")}</button> <button type="button" onClick=${() => ask(null)} autofocus>Keep them</button></p>
      <//>` : null}
    ${asks === "again" ? html`<${RunAgain} label=${part} view=${view} fault=${fault} onYes=${again} onNo=${() => ask(null)} />` : null}
  `;
}
