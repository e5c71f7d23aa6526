// The list of keys.
import { html, useState } from "../lib.js";
import { remember, remembered } from "../storage.js";
import { Dialog } from "./dialog.js";

const KEYS = [
  ["?", "this list"],
  ["g m", "my jobs"],
  ["g d", "devices"],
  ["g q", "queue"],
  ["g h", "history"],
  ["g t", "statistics"],
  ["g s", "submit a job"],
  ["/", "search the queue; Enter or Esc goes to the jobs found"],
  ["j, k", "next and previous job"],
  ["x", "select the marked job"],
  ["o, Enter", "open it"],
  ["Esc", "select nothing"],
  ["c", "cancel the selected jobs, or the job that is shown; asks first"],
  ["h, r", "hold, release them"],
  ["/, n, N", "in a job: search its output, next and previous match; Esc leaves the search"],
  ["f, w, B", "in a job: follow its output, wrap its lines, go to its beginning"],
];

/** @param {{onClose: () => void}} props */
export function Help({ onClose }) {
  const [isOff, setOff] = useState(remembered("keys") === "off");
  /** @param {Event & {currentTarget: HTMLInputElement}} event */
  const switched = (event) => {
    const off = !event.currentTarget.checked;
    remember("keys", off ? "off" : null);
    setOff(off);
  };
  return html`
    <${Dialog} title="Keys" onClose=${onClose}>
      <table class="keys" aria-label="Keys">
        <thead class="hidden"><tr><th>Key</th><th>What it does</th></tr></thead>
        <tbody>${KEYS.map(([key, what]) => html`<tr><td><kbd>${key}</kbd></td><td>${what}</td></tr>`)}</tbody>
      </table>
      <label class="check"><input type="checkbox" checked=${!isOff} onChange=${switched} /> Single keys work</label>
      <p class="actions"><button type="button" class="main" onClick=${onClose}>Close</button></p>
    <//>
  `;
}
