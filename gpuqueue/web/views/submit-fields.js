// The fields of a job, as they are typed for `gpuqueue submit`.
import { html } from "../lib.js";
import { Field } from "../parts/field.js";
import { PRIORITIES } from "../words.js";

/** @typedef {import("../history-types.js").JobForm} JobForm */
/** @typedef {import("../history-types.js").FormStart} FormStart */
/** @typedef {Event & {currentTarget: HTMLInputElement & HTMLSelectElement}} Changed */

const KINDS = [["gpu", "a GPU"], ["cpu", "the CPU of a host"], ["any", "a GPU or a CPU"]];

/** The devices that can be chosen: what the job has, kinds, and each device by its name. @param {FormStart} start @returns {[string, string][]} */
function devicesOf(start) {
  const { device } = start.form;
  const named = start.devices.map((each) => /** @type {[string, string]} */ ([each, each]));
  const all = /** @type {[string, string][]} */ ([...(device && start.label ? [] : [["", "as the site says"]]), ...KINDS, ...named]);
  return !device || all.some(([value]) => value === device) ? all : [[device, device], ...all];
}

/**
 * @param {object} props
 * @param {FormStart} props.start
 * @param {JobForm} props.form
 * @param {(changes: Partial<JobForm>) => void} props.onChange
 */
export function SubmitFields({ start, form, onChange }) {
  /** @param {keyof JobForm} name */
  const set = (name) => (/** @type {Changed} */ event) => onChange({ [name]: event.currentTarget.value });
  /** @param {keyof JobForm} name @param {Record<string, any>} [more] */
  const text = (name, more = {}) => html`<input id=${`job-${name}`} value=${form[name] ?? ""} onInput=${set(name)} autocomplete="off" spellcheck="false" aria-describedby=${`job-${name}-hint`} ...${more} />`;
  /** @param {keyof JobForm} name @param {[string, string][]} choices */
  const choice = (name, choices) => html`<select id=${`job-${name}`} value=${form[name]} onChange=${set(name)}>${choices.map(([value, words]) => html`<option key=${value} value=${value}>${words}</option>`)}</select>`;
  const isNew = start.label === null;
  return html`
    <div class="fields">
      ${start.has_script ? html`<${Field} id="job-args" label="Arguments" wide hint="What comes behind the script, quoted as in a shell">${text("args", { placeholder: "--lr 1e-3 --epochs 20" })}<//>` : null}
      <${Field} id="job-mem" label="Memory of each device" hint=${html`Such as 20G. <code>auto</code>: what earlier runs of this script needed`}>${text("mem", { placeholder: "6G" })}<//>
      <${Field} id="job-gpus" label="Number of devices" hint="All on one host"><input id="job-gpus" type="number" min="1" max="64" value=${form.gpus ?? ""} aria-describedby="job-gpus-hint"
        onInput=${(/** @type {Changed} */ event) => onChange({ gpus: event.currentTarget.value === "" ? null : Number(event.currentTarget.value) })} /><//>
      <${Field} id="job-device" label="Device">${choice("device", devicesOf(start))}<//>
      <${Field} id="job-time_limit" label="Time limit" hint="Such as 90m, 2h or 1d. Empty: none, or that of the pool">${text("time_limit", { placeholder: "2h" })}<//>
      <${Field} id="job-cpus" label="Processors, at most" hint="On average, such as 4 or 0.5. Only hosts that can limit it run the job">${text("cpus")}<//>
      <${Field} id="job-cpu_mem" label="Host memory, at most" hint="Such as 32G. Only hosts that can limit it run the job">${text("cpu_mem")}<//>
      ${isNew && start.environments.length ? html`<${Field} id="job-environment" label="Python environment" hint="With its packages, on the hosts that have it">${choice("environment", [["", "python3 of the host"], ...start.environments.map((each) => /** @type {[string, string]} */ ([each, each]))])}<//>` : null}
      <${Field} id="job-name" label="Name" hint=${isNew ? "Empty: the name of the script" : ""}>${text("name", { maxlength: 128, placeholder: isNew ? form.script : "" })}<//>
      <${Field} id="job-tags" label="Tags" hint="Words for finding the job">${text("tags", { placeholder: "baseline paper" })}<//>
      <${Field} id="job-priority" label="Priority">${choice("priority", PRIORITIES.map((each) => [each, each]))}<//>
      ${start.pools.length || form.pool ? html`<${Field} id="job-pool" label="Pool">${choice("pool", [["", "none"], ...[...new Set([...start.pools, ...(start.form.pool ? [start.form.pool] : [])])].map((each) => /** @type {[string, string]} */ ([each, each]))])}<//>` : null}
    </div>
  `;
}
