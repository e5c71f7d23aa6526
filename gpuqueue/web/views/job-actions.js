// The buttons of a job, as far as the caller may change it. The service refuses the rest, and the page says so.
import { change } from "../api.js";
import { isActive, isEnd } from "../job-words.js";
import { useKeys } from "../keys.js";
import { html, useState } from "../lib.js";
import { Dialog } from "../parts/dialog.js";
import { jobLink, link } from "../route.js";
import { PRIORITIES, size } from "../words.js";
import { EditTags, WriteNote, saveNote, saveTags } from "./job-marks.js";

/** @param {{label: string, name: string, state: string, isArray: boolean, onYes: () => void, onNo: () => void}} props */
function ConfirmCancel({ label, name, state, isArray, onYes, onNo }) {
  return html`
    <${Dialog} title=${`Cancel ${isArray ? "array" : "job"} ${label}?`} onClose=${onNo}>
      <p><bdi>${name}</bdi></p>
      <p>${isActive(state) ? (isArray ? "Members that run are ended, and the others do not start. " : "It runs now, and all its processes are ended. ") : ""}A cancelled job does not come back, but it can be run again as a new job.</p>
      <p class="actions">
        <button type="button" class="danger" onClick=${onYes}>Cancel ${label}</button>
        <button type="button" onClick=${onNo} autofocus>Keep it</button>
      </p>
    <//>
  `;
}

/** @param {{label: string, spec: import("../job-types.js").Spec, verdict: string | null, onYes: (mem: string) => void, onNo: () => void}} props */
function RunAgain({ label, spec, verdict, onYes, onNo }) {
  const [mem, setMem] = useState("");
  /** @param {Event} event */
  const submitted = (event) => {
    event.preventDefault();
    onYes(mem.trim());
  };
  return html`
    <${Dialog} title=${`Run ${label} again?`} onClose=${onNo}>
      <form onSubmit=${submitted}>
        <p>The same command, with the same code and environment as far as they are kept, becomes a new job of yours.${spec.array ? " Of an array, the members that failed run again." : ""}</p>
        ${verdict ? html`<p>Memory of the last run: ${verdict}.</p>` : null}
        ${spec.placement.whole ? null : html`<p><label class="choice">Memory <input class="short" value=${mem} onInput=${(/** @type {any} */ event) => setMem(event.currentTarget.value)} placeholder=${size(spec.mem_bytes)} autocomplete="off" maxlength="20" /></label></p>`}
        <p class="actions">
          <button class="main">Run it again</button>
          <a class="button" href=${link("submit", { again: label })}>Change more…</a>
          <button type="button" onClick=${onNo}>Not now</button>
        </p>
      </form>
    <//>
  `;
}

/**
 * @param {object} props
 * @param {import("../types.js").Me} props.me
 * @param {import("../job-types.js").JobView} props.view
 * @param {string} props.state
 * @param {string} props.label
 * @param {string} props.path
 * @param {() => void} props.onChange
 */
export function JobActions({ me, view, state, label, path, onChange }) {
  const [asks, setAsks] = useState(/** @type {"cancel" | "again" | "note" | "tags" | null} */ (null));
  const [says, setSays] = useState(/** @type {{words: any, isBad: boolean} | null} */ (null));
  const [isBusy, setBusy] = useState(false);
  const { spec, member, note, tags } = view.record.job;
  const { rights } = view;
  const may = rights.change && !isEnd(state);
  const waits = state === "queued" || state === "held";

  /** @param {() => Promise<any>} work */
  const act = async (work) => {
    if (isBusy) return;
    setAsks(null);
    setBusy(true);
    try {
      setSays({ words: await work(), isBad: false });
    } catch (error) {
      setSays({ words: /** @type {Error} */ (error).message, isBad: true });
    }
    setBusy(false);
    onChange();
  };
  const cancel = () => act(async () => ((await change("POST", `${path}/cancel`)).state === "cancelling" ? "Its processes are being ended." : "Cancelled."));
  const hold = () => act(() => change("POST", `${path}/hold`).then(() => "Held."));
  const release = () => act(() => change("POST", `${path}/release`).then(() => "Released."));
  /** @param {string} value */
  const setPriority = (value) => act(() => change("PATCH", path, { priority: value }).then(() => `Its priority is ${value} now.`));
  /** @param {string} mem */
  const again = (mem) => act(async () => {
    const job = await change("POST", `${path}/retry`, { changes: mem ? { mem } : {} });
    return html`It runs again as <a href=${jobLink(job.id)}>job ${job.id}</a>.`;
  });
  const stop = () => setAsks(null);
  useKeys({
    c: () => may && setAsks("cancel"),
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
        ${may ? html`<button type="button" disabled=${isBusy || state === "cancelling"} onClick=${() => setAsks("cancel")}>Cancel…</button>` : null}
        ${rights.change ? html`<button type="button" disabled=${isBusy} onClick=${() => setAsks("note")}>Note…</button>
          <button type="button" disabled=${isBusy} onClick=${() => setAsks("tags")}>Tags…</button>` : null}
        ${rights.retry && isEnd(state) ? html`<button type="button" class="main" disabled=${isBusy} onClick=${() => setAsks("again")}>Run again…</button>` : null}
      </div>
      ${!rights.change && me.account ? html`<small>Only ${spec.account.name} or an administrator may change it.</small>` : null}
      <p role="status" class=${says?.isBad ? "bad-text" : ""}>${says?.words}</p>
      ${asks === "cancel" ? html`<${ConfirmCancel} label=${label} name=${spec.name} state=${state} isArray=${spec.array !== null} onYes=${cancel} onNo=${stop} />` : null}
      ${asks === "note" ? html`<${WriteNote} label=${label} text=${note ?? ""} onYes=${(/** @type {string} */ text) => act(() => saveNote(path, text))} onNo=${stop} />` : null}
      ${asks === "tags" ? html`<${EditTags} label=${label} text=${tags.join(" ")} onYes=${(/** @type {string} */ text) => act(() => saveTags(path, tags, text))} onNo=${stop} />` : null}
      ${asks === "again" ? html`<${RunAgain} label=${label} spec=${spec} verdict=${view.verdict} onYes=${again} onNo=${stop} />` : null}
    </div>
  `;
}
