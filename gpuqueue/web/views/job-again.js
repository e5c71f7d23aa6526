// The dialog that runs a job again: with the same request, or with another memory.
import { address } from "../api.js";
import { fieldOf } from "../form-faults.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { Dialog } from "../parts/dialog.js";
import { Fault, described } from "../parts/field.js";
import { useRead } from "../reading.js";
import { link } from "../route.js";
import { size } from "../words.js";

/**
 * @param {object} props
 * @param {string} props.label
 * @param {import("../job-types.js").JobView} props.view
 * @param {string | null} props.fault why the service refused
 * @param {(mem: string) => void} props.onYes
 * @param {() => void} props.onNo
 */
export function RunAgain({ label, view, fault, onYes, onNo }) {
  const { spec } = view.record.job;
  /** @type {import("../reading.js").Once<import("../history-types.js").FormStart>} */
  const { value: start, error } = useRead(address("/web/form", { again: label }));
  const advised = start?.advice ? start.form.mem : "";
  const [typed, setMem] = useState(/** @type {string | null} */ (null));
  const mem = typed ?? advised;
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const ofMemory = fault !== null && fieldOf(fault) === "mem" && !spec.placement.whole ? fault : null;
  useEffect(() => {
    if (ofMemory) field.current?.select();
  }, [ofMemory]);
  /** @param {Event} event */
  const submitted = (event) => {
    event.preventDefault();
    onYes(mem.trim());
  };
  return html`
    <${Dialog} title=${`Run ${label} again?`} onClose=${onNo}>
      <form onSubmit=${submitted} novalidate>
        ${start ? html`<p>${start.what} <bdi>${start.again}</bdi></p>
          ${start.warnings.map((each) => html`<p key=${each} class="banner"><bdi>${each}</bdi></p>`)}` : html`<p class=${error ? "bad-text" : "loading"} role="status">${error ? error.message : "Loading…"}</p>`}
        ${start?.advice ? html`<p><strong>${start.advice}</strong></p>` : view.verdict ? html`<p>Memory of the last run: ${view.verdict}.</p>` : null}
        ${spec.placement.whole ? null : html`
          <p class="choice"><label for="again-mem">Memory</label>
            <input id="again-mem" ref=${field} class="short" value=${mem} onInput=${(/** @type {any} */ event) => setMem(event.currentTarget.value)} placeholder=${size(spec.mem_bytes)} autocomplete="off" maxlength="20" ...${described("again-mem", ofMemory)} /></p>
          <${Fault} id="again-mem" words=${ofMemory} />`}
        ${ofMemory ? null : html`<${Fault} id="again" words=${fault} />`}
        <p class="actions">
          <button class="main" disabled=${!start}>Run it again</button>
          <a class="button" href=${link("submit", { again: label, mem: mem.trim() })}>Change its arguments or more…</a>
          <button type="button" onClick=${onNo}>Not now</button>
        </p>
      </form>
    <//>
  `;
}
