// What people give to a job: its tags, its note, and more time.
import { change } from "../api.js";
import { html, useState } from "../lib.js";
import { Dialog } from "../parts/dialog.js";
import { Fault, described } from "../parts/field.js";

/**
 * A dialog with one text.
 * @param {object} props
 * @param {string} props.title
 * @param {string} props.name what a screen reader calls the field
 * @param {string} props.text
 * @param {boolean} [props.isLong]
 * @param {string | null} props.fault why the service refused it
 * @param {(text: string) => void} props.onYes
 * @param {() => void} props.onNo
 * @param {any} [props.children] what the text may be
 */
function AskText({ title, name, text, isLong = false, fault, onYes, onNo, children }) {
  const [words, setWords] = useState(text);
  /** @param {Event} event */
  const submitted = (event) => {
    event.preventDefault();
    onYes(words.trim());
  };
  const field = { id: "asked-text", value: words, maxlength: 1000, ...described("asked-text", fault), onInput: (/** @type {any} */ event) => setWords(event.currentTarget.value) };
  return html`
    <${Dialog} title=${title} onClose=${onNo}>
      <form onSubmit=${submitted}>
        <label class="hidden" for="asked-text">${name}</label>
        ${isLong ? html`<textarea rows="4" ...${field}></textarea>` : html`<input class="line" autocomplete="off" spellcheck="false" ...${field} />`}
        <${Fault} id="asked-text" words=${fault} />
        <p class="note">${children}</p>
        <p class="actions">
          <button class="main">Save</button>
          <button type="button" onClick=${onNo}>Leave it as it was</button>
        </p>
      </form>
    <//>
  `;
}

/** @typedef {{label: string, text: string, fault: string | null, onYes: (text: string) => void, onNo: () => void}} Asked */

/** @param {Asked} props */
export const WriteNote = ({ label, ...asked }) => html`<${AskText} title=${`Note on ${label}`} name="Note" isLong=${true} ...${asked}>Everybody who sees the job sees its note. An empty one is removed.<//>`;

/** @param {Asked} props */
export const EditTags = ({ label, ...asked }) => html`<${AskText} title=${`Tags of ${label}`} name="Tags" ...${asked}>Words with spaces between them. The filters of the queue and of the history find them.<//>`;

/** @param {Asked} props */
export const MoreTime = ({ label, ...asked }) => html`<${AskText} title=${`More time for ${label}`} name="Time to add" ...${asked}>What is added to its time limit, such as 30m or 2h.<//>`;

/** @param {string} path of the job @param {string} text */
export async function saveNote(path, text) {
  await change("PUT", `${path}/note`, { text });
  return text ? "The note is saved." : "The note is removed.";
}

/** Give a job the tags in a text, and return in words what has changed. @param {string} path @param {string[]} before @param {string} text */
export async function saveTags(path, before, text) {
  const after = text.split(/[\s,]+/).filter(Boolean);
  const added = [...new Set(after)].filter((each) => !before.includes(each));
  const removed = before.filter((each) => !after.includes(each));
  if (added.length) await change("POST", `${path}/tags`, { words: added });
  if (removed.length) await change("POST", `${path}/tags`, { words: removed, remove: true });
  const said = [added.length ? `Tagged ${added.join(", ")}.` : "", removed.length ? `No longer tagged ${removed.join(", ")}.` : ""];
  return said.filter(Boolean).join(" ") || "Its tags stay as they were.";
}
