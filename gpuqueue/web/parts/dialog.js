// A modal dialog. The browser keeps the focus in it, and Escape closes it.
import { html, useEffect, useRef } from "../lib.js";

/** @param {{title: string, onClose: () => void, children?: any}} props */
export function Dialog({ title, onClose, children }) {
  const box = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    const shown = box.current;
    shown?.showModal();
    return () => shown?.close();
  }, []);
  return html`
    <dialog ref=${box} aria-labelledby="dialog-title" onClose=${onClose} onCancel=${onClose}>
      <h2 id="dialog-title">${title}</h2>
      ${children}
    </dialog>
  `;
}
