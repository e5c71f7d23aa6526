// The dialog that runs a job again: with the same request, or with another memory.
import { fieldOf } from "../form-faults.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { Dialog } from "../parts/dialog.js";
import { Fault, described } from "../parts/field.js";
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
  const [mem, setMem] = useState("");
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
        <p>The same command with the same variables becomes a new job of yours.${spec.array ? " Of an array, the members that failed run again." : ""} ${view.again}</p>
        ${view.verdict ? html`<p>Memory of the last run: ${view.verdict}.</p>` : null}
        ${spec.placement.whole ? null : html`
          <p class="choice"><label for="again-mem">Memory</label>
            <input id="again-mem" ref=${field} class="short" value=${mem} onInput=${(/** @type {any} */ event) => setMem(event.currentTarget.value)} placeholder=${size(spec.mem_bytes)} autocomplete="off" maxlength="20" ...${described("again-mem", ofMemory)} /></p>
          <${Fault} id="again-mem" words=${ofMemory} />`}
        ${ofMemory ? null : html`<${Fault} id="again" words=${fault} />`}
        <p class="actions">
          <button class="main">Run it again</button>
          <a class="button" href=${link("submit", { again: label, mem: mem.trim() })}>Change more…</a>
          <button type="button" onClick=${onNo}>Not now</button>
        </p>
      </form>
    <//>
  `;
}
