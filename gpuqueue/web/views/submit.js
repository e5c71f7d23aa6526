// Submitting a job: a script from this machine, or an earlier job again with changes.
import { ApiError, address, noted, send } from "../api.js";
import { draft, keepDraft, useFile } from "../drafts.js";
import { faultsOf } from "../form-faults.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib.js";
import { Trouble } from "../parts/trouble.js";
import { useRead } from "../reading.js";
import { labelOf } from "../record.js";
import { readsOnly, whyReadsOnly } from "../rights.js";
import { jobLink } from "../route.js";
import { faultOf, sendScript } from "../script-upload.js";
import { usualTargets } from "./account-notifications.js";
import { SubmitFields } from "./submit-fields.js";
import { SubmitMore } from "./submit-more.js";
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

/** What a form begins with, and what was typed into it before. @param {import("../types.js").Me} me @param {FormStart} start @param {Partial<JobForm>} wanted @param {File | null} file */
function formOf(me, start, wanted, file) {
  const isNew = start.label === null;
  const begin = /** @type {JobForm} */ ({ ...start.form, ...(isNew ? usualTargets(me.account) : {}), ...wanted, script: isNew ? (file?.name ?? "") : start.form.script });
  const typed = draft(draftOf(start));
  // What the address has counts, unless the draft was made from the same one.
  return { begin, typed: typed ? { ...begin, ...typed.form, ...(typed.wanted === JSON.stringify(wanted) ? {} : wanted), script: begin.script } : null };
}

/** The name of the draft of a form. @param {FormStart} start */
const draftOf = ({ label }) => `submit:${label ?? ""}`;

/** @param {{me: import("../types.js").Me, start: FormStart, wanted: Partial<JobForm>}} props what the address has is wanted */
function JobFields({ me, start, wanted }) {
  const name = draftOf(start);
  const [file, setFile] = useFile(name);
  const [{ begin, typed }] = useState(() => formOf(me, start, wanted, file));
  const [form, setForm] = useState(/** @type {JobForm} */ (typed ?? begin));
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
    const next = { ...form, ...changes };
    setForm(next);
    keepDraft(name, { form: next, wanted: JSON.stringify(wanted) });
    setWrong((was) => was.filter(({ field }) => field !== null && !(field in changes)));
  };
  const clear = () => {
    keepDraft(name, null);
    setFile(null);
    setForm(begin.script ? { ...begin, script: start.form.script } : begin);
    setWrong([]);
  };
  const isChanged = file !== null || Object.entries(begin).some(([field, value]) => form[/** @type {keyof JobForm} */ (field)] !== value);
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
      clear();
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
      ${start.label === null ? html`<${SubmitMore} start=${start} form=${form} faults=${wrong} onChange=${change} />` : null}
      <div class="finish">
        <button class="main" aria-disabled=${isBusy ? "true" : undefined}>${isBusy ? "Submitting…" : start.label === null ? "Submit" : `Run job ${start.label} again`}</button>
        ${isChanged && !isBusy ? html`<button type="button" class="plain" onClick=${clear}>Clear the form</button>` : null}
        ${wrong.length ? html`<p class="banner bad" role="alert">${[marked ? `Nothing was submitted: see the marked ${marked === 1 ? "field" : "fields"}.` : "", ...others].filter(Boolean).join(" ")}</p>` : null}
      </div>
    </form>
  `;
}

/** @param {{me: import("../types.js").Me, query: Record<string, string>}} props */
export function Submit({ me, query }) {
  return readsOnly(me) ? html`<section class="submit"><h1>Submit a job</h1><p class="banner" role="status">${whyReadsOnly(me)} To submit, sign in with a token that has the scope <code>submit</code>.</p></section>` : html`<${Form} me=${me} query=${query} />`;
}

/** @param {{me: import("../types.js").Me, query: Record<string, string>}} props */
function Form({ me, query }) {
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
      ${start ? html`<${JobFields} key=${of} me=${me} start=${start} wanted=${wantedIn(query)} />` : null}
      ${start || isFailed || (isAgain && !again) ? null : html`<p class="loading">Loading the form…</p>`}
    </section>
  `;
}
