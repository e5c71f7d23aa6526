// What people give to a job: its tags, its note, and more time.
import { change } from "../api.js";
import { draft, keepDraft } from "../drafts.js";
import { html, useState } from "../lib.js";
import { Dialog } from "../parts/dialog.js";
import { Fault, described } from "../parts/field.js";

/**
 * A dialog with one text. With a name for its draft, what was typed is kept until it is saved or given up.
 * @param {object} props
 * @param {string} [props.draftName]
 * @param {string} props.title
 * @param {string} props.name what a screen reader calls the field
 * @param {string} props.text
 * @param {boolean} [props.isLong]
 * @param {string | null} props.fault why the service refused it
 * @param {(text: string) => void} props.onYes
 * @param {() => void} props.onNo
 * @param {any} [props.children] what the text may be
 */
function AskText({ title, draftName = "", name, text, isLong = false, fault, onYes, onNo, children }) {
  const kept = draftName ? draft(draftName) : null;
  const [words, setWords] = useState(/** @type {string} */ (kept ?? text));
  const [isKept] = useState(kept !== null && kept !== text);
  /** @param {any} event */
  const typed = (event) => {
    setWords(event.currentTarget.value);
    if (draftName) keepDraft(draftName, event.currentTarget.value);
  };
  const leave = () => {
    if (draftName) keepDraft(draftName, null);
    onNo();
  };
  /** @param {Event} event */
  const submitted = (event) => {
    event.preventDefault();
    onYes(words.trim());
  };
  const field = { id: "asked-text", value: words, maxlength: 1000, ...described("asked-text", fault), onInput: typed };
  return html`
    <${Dialog} title=${title} onClose=${onNo}>
      <form onSubmit=${submitted}>
        <label class="hidden" for="asked-text">${name}</label>
        ${isLong ? html`<textarea rows="4" ...${field}></textarea>` : html`<input class="line" autocomplete="off" spellcheck="false" ...${field} />`}
        <${Fault} id="asked-text" words=${fault} />
        <p class="note">${children}${isKept ? " This is what you typed before, and did not save." : null}</p>
        <p class="actions">
          <button class="main">Save</button>
          <button type="button" onClick=${leave}>Leave it as it was</button>
        </p>
      </form>
    <//>
  `;
}

/** @typedef {{label: string, text: string, fault: string | null, onYes: (text: string) => void, onNo: () => void}} Asked */

/** @param {Asked & {path: string}} props */
export const WriteNote = ({ label, path, ...asked }) => html`<${AskText} draftName=${`note:${path}`} title=${`Note on ${label}`} name="Note" isLong=${true} ...${asked}>Everybody who sees the job sees its note. An empty one is removed.<//>`;

/** @param {Asked & {path: string}} props */
export const EditTags = ({ label, path, ...asked }) => html`<${AskText} draftName=${`tags:${path}`} title=${`Tags of ${label}`} name="Tags" ...${asked}>Words with spaces between them. The filters of the queue and of the history find them.<//>`;

/** @param {Asked} props */
export const MoreTime = ({ label, ...asked }) => html`<${AskText} title=${`More time for ${label}`} name="Time to add" ...${asked}>What is added to its time limit, such as 30m or 2h.<//>`;

/** @param {string} path of the job @param {string} text */
export async function saveNote(path, text) {
  await change("PUT", `${path}/note`, { text });
  keepDraft(`note:${path}`, null);
  return text ? "The note is saved." : "The note is removed.";
}

/** Give a job the tags in a text, and return in words what has changed. @param {string} path @param {string[]} before @param {string} text */
export async function saveTags(path, before, text) {
  const after = text.split(/[\s,]+/).filter(Boolean);
  const added = [...new Set(after)].filter((each) => !before.includes(each));
  const removed = before.filter((each) => !after.includes(each));
  if (added.length) await change("POST", `${path}/tags`, { words: added });
  if (removed.length) await change("POST", `${path}/tags`, { words: removed, remove: true });
  keepDraft(`tags:${path}`, null);
  const said = [added.length ? `Tagged ${added.join(", ")}.` : "", removed.length ? `No longer tagged ${removed.join(", ")}.` : ""];
  return said.filter(Boolean).join(" ") || "Its tags stay as they were.";
}
