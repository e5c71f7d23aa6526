// The fields of a new job that few jobs need: an array or a sweep, other jobs first, and who is told of its end.
import { html, useEffect, useState } from "../lib.js";
import { Field, described } from "../parts/field.js";

/** @typedef {import("../history-types.js").JobForm} JobForm */
/** @typedef {Event & {currentTarget: HTMLInputElement & HTMLTextAreaElement}} Changed */

/** @type {(keyof JobForm)[]} */
const NAMES = ["array", "sweep", "at_once", "after", "on_end", "on_fail"];

/**
 * @param {object} props
 * @param {import("../history-types.js").FormStart} props.start
 * @param {JobForm} props.form
 * @param {import("../form-faults.js").FormFault[]} props.faults
 * @param {(changes: Partial<JobForm>) => void} props.onChange
 */
export function SubmitMore({ start, form, faults, onChange }) {
  const isUsed = NAMES.some((each) => form[each]);
  const isWrong = faults.some(({ field }) => field !== null && NAMES.includes(/** @type {keyof JobForm} */ (field)));
  const [isOpen, setOpen] = useState(isUsed);
  useEffect(() => {
    if (isWrong) setOpen(true);
  }, [isWrong]);
  /** @param {keyof JobForm} name */
  const wrong = (name) => faults.find(({ field }) => field === name)?.words ?? null;
  /** @param {keyof JobForm} name @param {string} label @param {any} hint @param {Record<string, any>} more @param {boolean} [isLong] */
  const text = (name, label, hint, more, isLong = false) => {
    const own = { id: `job-${name}`, value: form[name], autocomplete: "off", spellcheck: false, onInput: (/** @type {Changed} */ event) => onChange({ [name]: event.currentTarget.value }), ...described(`job-${name}`, wrong(name), true), ...more };
    return html`<${Field} id=${`job-${name}`} label=${label} hint=${hint} fault=${wrong(name)} wide=${isLong}>${isLong ? html`<textarea rows="2" ...${own}></textarea>` : html`<input ...${own} />`}<//>`;
  };
  return html`
    <details class="more-fields" open=${isOpen || isWrong} onToggle=${(/** @type {any} */ event) => setOpen(event.currentTarget.open)}>
      <summary>Arrays, other jobs first, notifications</summary>
      <div class="fields">
        ${text("array", "Array", html`Indexes such as 0-99: a member for each. <code>GPUQUEUE_ARRAY_INDEX</code> has its own, and so has <code>{index}</code> in the arguments`, { placeholder: "0-99" })}
        ${text("at_once", "Members at once, at most", "Of an array or a sweep. Empty: no limit", { placeholder: "4", inputmode: "numeric" })}
        ${text("sweep", "Sweep", html`A parameter on each line, with its values. <code>{lr}</code> in the arguments is replaced by one`, { placeholder: "lr=1e-3,1e-4\nseed=0..4" }, true)}
        ${text("after", "After these jobs", html`Ids of jobs that must succeed first. <code>12:any</code>: after any ending`, { placeholder: "12 13:any" })}
        ${text("on_end", "Notify at its end", html`Targets with spaces between them. <a href="#/account">Begin with these each time</a>`, { list: "job-targets" })}
        ${text("on_fail", "Notify unless it succeeds", "Targets with spaces between them", { list: "job-targets" })}
      </div>
      <datalist id="job-targets">${start.targets.map((each) => html`<option key=${each} value=${each} />`)}</datalist>
    </details>
  `;
}
