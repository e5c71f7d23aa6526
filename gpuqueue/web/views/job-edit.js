// The dialog that changes what a waiting job asks for. It sends only what was changed.
import { change } from "../api.js";
import { faultsOf } from "../form-faults.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { draft, keepDraft } from "../drafts.js";
import { Dialog } from "../parts/dialog.js";
import { Fault, Field, described } from "../parts/field.js";
import { duration, size } from "../words.js";

/** @typedef {{mem: string, time_limit: string, at_once: string, on_end: string, on_fail: string}} Edit */
/** @typedef {import("../job-types.js").JobView} JobView */

/** A size as it is typed for exactly these bytes. @param {number} bytes */
const typed = (bytes) => (bytes % 2 ** 30 === 0 || bytes % 2 ** 20 !== 0 ? size(bytes) : `${bytes / 2 ** 20}M`);

/** Whether an array has begun: then only the number of its members at once can change. @param {JobView} view */
export const hasBegun = ({ record: { job } }) => job.spec.array !== null && (job.started_at !== null || Object.keys(job.tally?.ended ?? {}).length > 0);

/** The targets that the job notifies. Of a URL only the scheme is known here. @param {any} spec @param {string} when */
const notifiedIn = ({ notifications }, when) => notifications.filter((/** @type {any} */ each) => each.when === when).map((/** @type {any} */ each) => each.to).join(" ");

/** What the job asks for, as it is typed. @param {JobView} view @returns {Edit} */
function askedIn({ record: { job } }) {
  const { spec } = job;
  return {
    mem: spec.placement.whole ? "" : typed(spec.mem_bytes),
    time_limit: spec.time_limit_s === null ? "" : duration(spec.time_limit_s).replaceAll(" ", ""),
    at_once: spec.array?.at_once ? String(spec.array.at_once) : "",
    on_end: notifiedIn(spec, "end"),
    on_fail: notifiedIn(spec, "fail"),
  };
}

/** The words that remove a value. @type {Record<string, string>} */
const REMOVED = { time_limit: "none", at_once: "none", on_end: "none", on_fail: "none" };
/** Fields that are lists of words. @type {Set<string>} */
const LISTS = new Set(["on_end", "on_fail"]);

/**
 * Change a job, and return what was changed in words.
 * @param {string} path
 * @param {Edit} before
 * @param {Edit} after
 */
export async function saveEdit(path, before, after) {
  /** @type {Record<string, any>} */
  const body = {};
  for (const name of /** @type {(keyof Edit)[]} */ (Object.keys(before))) {
    const now = after[name].trim();
    if (now !== before[name]) body[name] = (LISTS.has(name) && now ? now.split(/[\s,]+/) : now) || REMOVED[name] || "";
  }
  if (body.mem === "") delete body.mem;
  if (!Object.keys(body).length) return "It stays as it was.";
  const { spec } = await change("PATCH", path, body);
  const now = [
    body.mem ? `asks for ${size(spec.mem_bytes)}` : "",
    body.time_limit ? (spec.time_limit_s === null ? "has no time limit" : `has ${duration(spec.time_limit_s)}`) : "",
    body.at_once ? (spec.array.at_once === null ? "may run all members at once" : `runs at most ${spec.array.at_once} members at once`) : "",
    body.on_end || body.on_fail ? (spec.notifications.length ? `notifies ${spec.notifications.map((/** @type {any} */ each) => each.to).join(", ")}` : "notifies nobody") : "",
  ].filter(Boolean);
  return `It ${now.join(", ")} now.`;
}

/**
 * @param {object} props
 * @param {string} props.label
 * @param {JobView} props.view
 * @param {string} props.path
 * @param {import("../api.js").ApiError | null} props.error why the service refused
 * @param {(before: Edit, after: Edit) => void} props.onYes
 * @param {() => void} props.onNo
 */
export function EditJob({ label, view, path, error, onYes, onNo }) {
  const { spec } = view.record.job;
  const before = useRef(askedIn(view));
  const [edit, setEdit] = useState(/** @type {Edit} */ ({ ...before.current, ...draft(`edit:${path}`) }));
  const form = useRef(/** @type {HTMLFormElement | null} */ (null));
  const faults = error ? faultsOf(error) : [];
  const fields = /** @type {string[]} */ ([]);
  useEffect(() => {
    if (error) /** @type {HTMLElement | null} */ (form.current?.querySelector("[aria-invalid]") ?? null)?.focus();
  }, [error]);
  /** @param {keyof Edit} name @param {string} text */
  const set = (name, text) => {
    const next = { ...edit, [name]: text };
    setEdit(next);
    keepDraft(`edit:${path}`, next);
  };
  /** @param {Event} event */
  const submitted = (event) => {
    event.preventDefault();
    onYes(before.current, edit);
  };
  const stop = () => {
    keepDraft(`edit:${path}`, null);
    onNo();
  };
  /** @param {keyof Edit} name @param {string} title @param {any} hint @param {string} [example] */
  const field = (name, title, hint, example) => {
    fields.push(name);
    const fault = faults.find((each) => each.field === name)?.words ?? null;
    return html`<${Field} id=${`edit-${name}`} label=${title} hint=${hint} fault=${fault}>
      <input class="line" value=${edit[name]} onInput=${(/** @type {any} */ event) => set(name, event.currentTarget.value)} placeholder=${example} autocomplete="off" spellcheck="false" id=${`edit-${name}`} ...${described(`edit-${name}`, fault, true)} /><//>`;
  };
  const isArrayAlone = hasBegun(view);
  const inputs = [
    ...(isArrayAlone || spec.placement.whole ? [] : [field("mem", "Memory on each device", html`Such as 20G, or <code>auto</code>`, "6G")]),
    ...(isArrayAlone ? [] : [field("time_limit", "Time limit", "Such as 90m or 2h. Empty: none", "2h")]),
    ...(isArrayAlone ? [] : [
      field("on_end", "Notify at its end", html`Targets with spaces between them. They replace the present ones${edit.on_end.includes("…") ? ": a URL must be written anew" : ""}`),
      field("on_fail", "Notify unless it succeeds", "Targets with spaces between them"),
    ]),
    ...(spec.array ? [field("at_once", "Members at once, at most", "Empty: no limit", "4")] : []),
  ];
  const others = faults.filter((each) => each.field === null || !fields.includes(each.field)).map((each) => each.words);
  return html`
    <${Dialog} title=${`Edit ${label}`} onClose=${onNo}>
      <form ref=${form} onSubmit=${submitted} novalidate class="edit-fields">
        ${isArrayAlone ? html`<p>The array has begun, so only this can change.</p>` : html`<p>The job keeps its place.</p>`}
        ${inputs}
        <${Fault} id="edit" words=${others.join(" ") || null} />
        <p class="actions">
          <button class="main">Save</button>
          <button type="button" onClick=${stop}>Leave it as it was</button>
        </p>
      </form>
    <//>
  `;
}
