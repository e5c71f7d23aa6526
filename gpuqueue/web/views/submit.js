// Submitting a job: a script from this machine, or an earlier job again with changes.
import { ApiError, address, noted, send } from "../api.js";
import { faultsOf } from "../form-faults.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib.js";
import { Trouble } from "../parts/trouble.js";
import { useRead } from "../reading.js";
import { labelOf } from "../record.js";
import { jobLink } from "../route.js";
import { faultOf, sendScript } from "../script-upload.js";
import { SubmitFields } from "./submit-fields.js";
import { EarlierJob, ScriptFile, SourceChoice } from "./submit-source.js";

/** @typedef {import("../history-types.js").FormStart} FormStart */
/** @typedef {import("../history-types.js").JobForm} JobForm */

/** The kind of an error about the chosen file. */
const OF_SCRIPT = "script";

/** A key of a request: the same request with the same key makes one job, however often it is sent. */
const newKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((each) => each.toString(16).padStart(2, "0")).join("");

/**
 * Submit the form, and return the name of the job and what the service points out.
 * @param {FormStart} start
 * @param {JobForm} form
 * @param {File | null} file
 * @param {string} key
 */
async function submit(start, form, file, key) {
  let path = `/web/jobs/${start.label}/retry`;
  let body = form;
  if (start.label === null) {
    const fault = file ? await faultOf(file, start.file_bytes) : "Choose a script first.";
    if (fault || !file) throw new ApiError(0, fault ?? "", OF_SCRIPT);
    path = "/web/jobs";
    body = { ...form, script: file.name, snapshot: await sendScript(file) };
  }
  const answer = await send("POST", address(path), { body, headers: { "Idempotency-Key": key } });
  return { label: labelOf(await answer.json()), warning: answer.headers.get("Gpuqueue-Warning") ?? "" };
}

/** The memory and the devices of a new job that the address has. @param {Record<string, string>} query @returns {Partial<JobForm>} */
function wantedIn({ mem, gpus }) {
  const count = Number.parseInt(gpus, 10);
  return { ...(mem ? { mem } : {}), ...(count > 0 ? { gpus: count } : {}) };
}

/** @param {{label: string, warning: string, onNext: () => void}} props */
function Done({ label, warning, onNext }) {
  const head = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => head.current?.focus(), []);
  return html`
    <section class="submit">
      <h1 tabindex="-1" ref=${head}>Job ${label} is submitted</h1>
      <p class="banner" role="status">${warning}</p>
      <p class="actions"><a class="button" href=${jobLink(label)}>Go to job ${label}</a> <button type="button" onClick=${onNext}>Submit another one</button></p>
    </section>
  `;
}

/** @param {{start: FormStart, wanted: Partial<JobForm>}} props what the address has is wanted */
function JobFields({ start, wanted }) {
  const [form, setForm] = useState(/** @type {JobForm} */ ({ ...start.form, ...wanted }));
  const [file, setFile] = useState(/** @type {File | null} */ (null));
  const [wrong, setWrong] = useState(/** @type {import("../form-faults.js").FormFault[]} */ ([]));
  const box = useRef(/** @type {HTMLFormElement | null} */ (null));
  const [marked, setMarked] = useState(0);
  const isFocused = useRef(false);
  const [isBusy, setBusy] = useState(false);
  const [done, setDone] = useState(/** @type {{label: string, warning: string} | null} */ (null));
  const isSending = useRef(false);
  const key = useRef(newKey());
  /** @param {Partial<JobForm>} changes */
  const change = (changes) => {
    setForm((was) => ({ ...was, ...changes }));
    setWrong((was) => was.filter(({ field }) => field !== null && !(field in changes)));
  };
  /** @param {SubmitEvent} event */
  const submitted = async (event) => {
    event.preventDefault();
    if (isSending.current) return;
    isSending.current = true;
    setBusy(true);
    setWrong([]);
    try {
      const made = await submit(start, form, file, key.current);
      key.current = newKey();
      if (made.warning) setDone(made);
      else location.hash = jobLink(made.label);
    } catch (error) {
      const found = noted(error);
      setWrong(found.kind === OF_SCRIPT ? [{ field: "script", words: found.message }] : faultsOf(found));
    } finally {
      isSending.current = false;
      setBusy(false);
    }
  };
  useLayoutEffect(() => {
    const marked = /** @type {NodeListOf<HTMLElement> | undefined} */ (box.current?.querySelectorAll("[aria-invalid]"));
    setMarked(marked?.length ?? 0);
    if (wrong.length && !isFocused.current) marked?.[0]?.focus();
    isFocused.current = wrong.length > 0; // not again while its faults are corrected
  }, [wrong]);
  const others = wrong.filter(({ field }) => field === null || !(field in form)).map(({ words }) => words);
  if (done) return html`<${Done} ...${done} onNext=${() => setDone(null)} />`;
  return html`
    <form ref=${box} onSubmit=${submitted} novalidate>
      ${start.advice && form.mem === start.form.mem ? html`<p class="banner" role="status">${start.advice}</p>` : null}
      ${start.warnings.map((each) => html`<p key=${each} class="banner" role="status">${each}</p>`)}
      ${start.label === null ? html`<${ScriptFile} file=${file} start=${start} fault=${wrong.find(({ field }) => field === "script")?.words ?? null} onFile=${(/** @type {File | null} */ next) => { setFile(next); change({ script: next?.name ?? "" }); }} />` : null}
      <${SubmitFields} start=${start} form=${form} faults=${wrong} onChange=${change} />
      <div class="finish">
        <button class="main" aria-disabled=${isBusy ? "true" : undefined}>${isBusy ? "Submitting…" : start.label === null ? "Submit" : `Run job ${start.label} again`}</button>
        ${wrong.length ? html`<p class="banner bad" role="alert">${[marked ? `Nothing was submitted: see the marked ${marked === 1 ? "field" : "fields"}.` : "", ...others].filter(Boolean).join(" ")}</p>` : null}
      </div>
    </form>
  `;
}

/** @param {{me: import("../types.js").Me, query: Record<string, string>}} props */
export function Submit({ me, query }) {
  const again = query.again ?? "";
  const isAgain = Boolean(again) || query.how === "again";
  const url = address("/web/form", { again });
  /** @type {import("../reading.js").Once<FormStart>} */
  const { value, of, error } = useRead(isAgain && !again ? null : url);
  const start = of === url && (again || !isAgain) ? value : null;
  const isFailed = error !== null && !start && (again || !isAgain);
  return html`
    <section class="submit">
      <h1>Submit a job</h1>
      <${SourceChoice} isAgain=${isAgain} />
      ${isAgain ? html`<${EarlierJob} me=${me} again=${again} start=${start} />` : null}
      ${isFailed ? html`<${Trouble} error=${error} />` : null}
      ${start ? html`<${JobFields} key=${of} start=${start} wanted=${wantedIn(query)} />` : null}
      ${start || isFailed || (isAgain && !again) ? null : html`<p class="loading">Loading the form…</p>`}
    </section>
  `;
}
