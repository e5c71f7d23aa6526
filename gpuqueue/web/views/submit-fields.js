// The fields of a job, as they are typed for `gpuqueue submit`.
import { html } from "../lib.js";
import { Field, described } from "../parts/field.js";
import { PRIORITIES } from "../words.js";

/** @typedef {import("../history-types.js").JobForm} JobForm */
/** @typedef {import("../history-types.js").FormStart} FormStart */
/** @typedef {Event & {currentTarget: HTMLInputElement & HTMLSelectElement}} Changed */

const KINDS = [["gpu", "a GPU"], ["cpu", "the CPU of a host"], ["any", "a GPU or a CPU"]];

/** @param {string[]} values @returns {[string, string][]} */
const named = (values) => values.map((each) => [each, each]);

/** Whether the job is a script that Python runs, and the form chooses which one. @param {FormStart} start @param {JobForm} form */
const takesPython = (start, form) => (start.label === null ? !form.script || form.script.endsWith(".py") : Boolean(start.form.python));

/** The devices that can be chosen: what the job has, kinds, and each device by its name. @param {FormStart} start @returns {[string, string][]} */
function devicesOf(start) {
  const { device } = start.form;
  const all = /** @type {[string, string][]} */ ([...(device && start.label ? [] : [["", "the default of this site"]]), ...KINDS, ...named(start.devices)]);
  return !device || all.some(([value]) => value === device) ? all : [[device, device], ...all];
}

/**
 * @param {object} props
 * @param {FormStart} props.start
 * @param {JobForm} props.form
 * @param {import("../form-faults.js").FormFault[]} props.faults what the service says of the fields
 * @param {(changes: Partial<JobForm>) => void} props.onChange
 */
export function SubmitFields({ start, form, faults, onChange }) {
  /** @param {keyof JobForm} name */
  const set = (name) => (/** @type {Changed} */ event) => onChange({ [name]: event.currentTarget.value });
  /** @param {keyof JobForm} name */
  const wrong = (name) => faults.find(({ field }) => field === name)?.words ?? null;
  /** The attributes that all inputs have. @param {keyof JobForm} name @param {boolean} hasHint */
  const input = (name, hasHint) => ({ id: `job-${name}`, ...described(`job-${name}`, wrong(name), hasHint) });
  /** @param {keyof JobForm} name @param {string} label @param {any} hint @param {Record<string, any>} [more] @param {boolean} [wide] */
  const text = (name, label, hint, more = {}, wide = false) => html`
    <${Field} id=${`job-${name}`} label=${label} hint=${hint} fault=${wrong(name)} wide=${wide}>
      <input value=${form[name] ?? ""} onInput=${set(name)} autocomplete="off" spellcheck="false" ...${input(name, Boolean(hint))} ...${more} /><//>`;
  /** @param {keyof JobForm} name @param {string} label @param {[string, string][]} choices @param {string} [hint] */
  const choice = (name, label, choices, hint) => html`
    <${Field} id=${`job-${name}`} label=${label} hint=${hint} fault=${wrong(name)}>
      <select value=${form[name]} onChange=${set(name)} ...${input(name, Boolean(hint))}>${choices.map(([value, words]) => html`<option key=${value} value=${value}>${words}</option>`)}</select><//>`;
  const isNew = start.label === null;
  return html`
    <div class="fields">
      ${start.has_script ? text("args", "Arguments", "What comes behind the script, quoted as in a shell", { placeholder: "--lr 1e-3 --epochs 20" }, true) : null}
      ${text("mem", "Memory on each device", html`Such as 20G. <code>auto</code>: what earlier runs of this script needed`, { placeholder: "6G" })}
      <${Field} id="job-gpus" label="Number of devices" hint="All on one host" fault=${wrong("gpus")}><input type="number" min="1" max="64" value=${form.gpus ?? ""} ...${input("gpus", true)}
        onInput=${(/** @type {Changed} */ event) => onChange({ gpus: event.currentTarget.value === "" ? null : Number(event.currentTarget.value) })} /><//>
      ${choice("device", "Device", devicesOf(start))}
      ${text("time_limit", "Time limit", "Such as 90m, 2h or 1d. Empty: the limit of the chosen pool if it has one, else no limit", { placeholder: "2h" })}
      ${text("cpus", "Processors, at most", "On average, such as 4 or 0.5. Only hosts that can limit it run the job")}
      ${text("cpu_mem", "Host memory, at most", "Such as 32G. Only hosts that can limit it run the job")}
      ${isNew && start.environments.length ? choice("environment", "Python environment", [["", "none"], ...named(start.environments)], "With its packages, on the hosts that have it") : null}
      ${takesPython(start, form) ? text("python", "Python", isNew ? html`The interpreter on the host, such as <code>/opt/conda/bin/python</code>. Empty: <code>python3</code>${start.environments.length ? ", or that of the environment" : ""}` : "The interpreter on the host. Empty: as before", { placeholder: "python3" }) : null}
      ${text("name", "Name", isNew ? "Empty: the name of the script" : "", { maxlength: 128, placeholder: isNew ? form.script : "" })}
      ${text("tags", "Tags", "Words for finding the job", { placeholder: "baseline paper" })}
      ${choice("priority", "Priority", named(PRIORITIES))}
      ${start.pools.length || form.pool ? choice("pool", "Pool", [["", "none"], ...named([...new Set([...start.pools, ...(start.form.pool ? [start.form.pool] : [])])])]) : null}
    </div>
  `;
}
