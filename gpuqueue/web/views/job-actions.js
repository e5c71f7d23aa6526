// The buttons of a job, as far as the caller may change it. The service refuses the rest, and the page says so.
import { change, noted } from "../api.js";
import { keepDraft } from "../drafts.js";
import { isActive, isEnd } from "../job-states.js";
import { useKeys } from "../keys.js";
import { html, useState } from "../lib.js";
import { Dialog } from "../parts/dialog.js";
import { Fault } from "../parts/field.js";
import { readsOnly, whyReadsOnly } from "../rights.js";
import { jobLink } from "../route.js";
import { PRIORITIES, duration, plural } from "../words.js";
import { RunAgain } from "./job-again.js";
import { EditJob, hasBegun, saveEdit } from "./job-edit.js";
import { EditTags, MoreTime, WriteNote, saveNote, saveTags } from "./job-marks.js";

/** @typedef {"cancel" | "again" | "note" | "tags" | "time" | "edit" | null} Asks */

/** What a cancel ends of an array. @param {import("../types.js").Members} members */
const endsOf = ({ running, waiting, held }) => [
  running ? `${plural(running, "member runs", "members run")} now, and ${running === 1 ? "its" : "their"} processes are ended. ` : "",
  waiting + held ? `${plural(waiting + held, "member waits", "members wait")}, and ${waiting + held === 1 ? "does" : "do"} not start. ` : "",
].join("");

/** @param {{label: string, name: string, state: string, isArray: boolean, members: import("../types.js").Members | null, fault: string | null, onYes: () => void, onNo: () => void}} props */
function ConfirmCancel({ label, name, state, isArray, members, fault, onYes, onNo }) {
  return html`
    <${Dialog} title=${`Cancel ${isArray ? "array" : "job"} ${label}?`} onClose=${onNo}>
      <p><bdi>${name}</bdi></p>
      <p>${members ? endsOf(members) : !isArray && isActive(state) ? "It runs now, and all its processes are ended. " : ""}A cancelled job does not come back, but it can be run again as a new job.</p>
      <${Fault} id="cancel" words=${fault} />
      <p class="actions">
        <button type="button" class="danger" onClick=${onYes}>Cancel ${isArray ? "array " : ""}${label}</button>
        <button type="button" onClick=${onNo} autofocus>Keep it</button>
      </p>
    <//>
  `;
}

/**
 * @param {object} props
 * @param {import("../types.js").Me} props.me
 * @param {import("../job-types.js").JobView} props.view
 * @param {import("../job-types.js").LiveJob | null} props.live
 * @param {string} props.state
 * @param {string} props.label
 * @param {string} props.path
 * @param {Asks} props.asks the dialog that is open
 * @param {(asks: Asks) => void} props.onAsk
 * @param {() => void} props.onChange
 */
export function JobActions({ me, view, live, state, label, path, asks, onAsk, onChange }) {
  const [says, setSays] = useState(/** @type {{words: any, isBad: boolean, hasEnded: boolean} | null} */ (null));
  const [refusal, setRefusal] = useState(/** @type {import("../api.js").ApiError | null} */ (null));
  const fault = refusal?.message ?? null;
  const [isBusy, setBusy] = useState(false);
  const { spec, member, note, tags, front } = view.record.job;
  const { rights } = view;
  const may = rights.change && !isEnd(state);
  const waits = state === "queued" || state === "held";

  /** @param {Asks} next */
  const ask = (next) => {
    setRefusal(null);
    onAsk(next);
  };
  /** Do something. If a dialog asked for it, that stays open after a refusal, and says why. @param {() => Promise<any>} work */
  const act = async (work) => {
    if (isBusy) return;
    setBusy(true);
    setRefusal(null);
    try {
      setSays({ words: await work(), isBad: false, hasEnded: isEnd(state) });
      onAsk(null);
    } catch (error) {
      const met = noted(error);
      if (asks) setRefusal(met);
      else setSays({ words: met.message, isBad: true, hasEnded: isEnd(state) });
    }
    setBusy(false);
    onChange();
  };
  const cancel = () => act(async () => ((await change("POST", `${path}/cancel`)).state === "cancelling" ? "Its processes are being ended." : "Cancelled."));
  const hold = () => act(() => change("POST", `${path}/hold`).then(() => "Held."));
  const release = () => act(() => change("POST", `${path}/release`).then(() => "Released."));
  /** @param {string} value */
  const setPriority = (value) => act(() => change("PATCH", path, { priority: value }).then(() => `Its priority is ${value} now.`));
  /** @param {string} time */
  const extend = (time) => act(async () => `Its time limit is ${duration((await change("POST", `${path}/extend`, { time })).spec.time_limit_s)} now.`);
  /** @param {string} mem */
  const again = (mem) => act(async () => {
    const job = await change("POST", `${path}/retry`, { changes: mem ? { mem } : {} });
    return html`It runs again as <a href=${jobLink(job.id)}>job ${job.id}</a>.`;
  });
  /** @param {boolean} front */
  const move = (front) => act(() => change("POST", `${path}/move`, { front }).then(() => (front ? "It goes before your other waiting jobs now." : "It has its place by arrival again.")));
  /** @param {any} before @param {any} after */
  const edit = (before, after) => act(async () => {
    const words = await saveEdit(path, before, after);
    keepDraft(`edit:${path}`, null);
    return words;
  });
  const stop = () => ask(null);
  const isStale = isEnd(state) && !says?.hasEnded; // it was said of a job that waited or ran
  useKeys({
    c: () => may && ask("cancel"),
    h: () => may && state === "queued" && hold(),
    r: () => may && state === "held" && release(),
  });

  return html`
    <div class="job-actions">
      <div class="buttons">
        ${may && state === "queued" ? html`<button type="button" disabled=${isBusy} onClick=${hold}>Hold</button>` : null}
        ${may && state === "held" ? html`<button type="button" disabled=${isBusy} onClick=${release}>Release</button>` : null}
        ${may && waits && !member ? html`<label class="choice">Priority
          <select disabled=${isBusy} value=${spec.priority} onChange=${(/** @type {any} */ event) => setPriority(event.currentTarget.value)}>
            ${PRIORITIES.map((each) => html`<option value=${each}>${each}</option>`)}
          </select></label>` : null}
        ${may && waits && !member ? html`<button type="button" disabled=${isBusy} onClick=${() => ask("edit")}>Edit…</button>` : null}
        ${may && state === "queued" && !member ? html`<button type="button" disabled=${isBusy} onClick=${() => move(front === null)} title=${front === null ? `Before the other waiting jobs of ${spec.account.name}; the order between users stays` : "To its place by arrival"}>${front === null ? "To the front" : "Back to its place"}</button>` : null}
        ${may && state === "running" && spec.array && !member && hasBegun(view) ? html`<button type="button" disabled=${isBusy} onClick=${() => ask("edit")}>Edit…</button>` : null}
        ${may ? html`<button type="button" disabled=${isBusy || state === "cancelling"} onClick=${() => ask("cancel")}>Cancel…</button>` : null}
        ${may && spec.time_limit_s !== null && !member && !spec.array ? html`<button type="button" disabled=${isBusy || state === "cancelling"} onClick=${() => ask("time")}>More time…</button>` : null}
        ${rights.change ? html`<button type="button" disabled=${isBusy} onClick=${() => ask("note")}>Note…</button>
          <button type="button" disabled=${isBusy} onClick=${() => ask("tags")}>Tags…</button>` : null}
        ${rights.retry && isEnd(state) ? html`<button type="button" class="main" disabled=${isBusy} onClick=${() => ask("again")}>Run again…</button>` : null}
      </div>
      ${!rights.change && me.account ? html`<small>${readsOnly(me) ? whyReadsOnly(me) : `Only ${spec.account.name} or an administrator may change it.`}</small>` : null}
      <p role="status" class=${says?.isBad ? "bad-text" : ""}>${isStale ? "" : says?.words}</p>
      ${asks === "cancel" ? html`<${ConfirmCancel} label=${label} name=${spec.name} state=${state} isArray=${spec.array !== null} members=${live?.row?.members ?? null} fault=${fault} onYes=${cancel} onNo=${stop} />` : null}
      ${asks === "note" ? html`<${WriteNote} label=${label} path=${path} text=${note ?? ""} fault=${fault} onYes=${(/** @type {string} */ text) => act(() => saveNote(path, text))} onNo=${stop} />` : null}
      ${asks === "tags" ? html`<${EditTags} label=${label} path=${path} text=${tags.join(" ")} fault=${fault} onYes=${(/** @type {string} */ text) => act(() => saveTags(path, tags, text))} onNo=${stop} />` : null}
      ${asks === "edit" ? html`<${EditJob} label=${label} view=${view} path=${path} error=${refusal} onYes=${edit} onNo=${stop} />` : null}
      ${asks === "time" ? html`<${MoreTime} label=${label} text="1h" fault=${fault} onYes=${extend} onNo=${stop} />` : null}
      ${asks === "again" ? html`<${RunAgain} label=${label} view=${view} fault=${fault} onYes=${again} onNo=${stop} />` : null}
    </div>
  `;
}
