// A modal dialog. The browser keeps the focus in it, and Escape closes it. Then the focus is where it was before, or at
// the content if that is gone.
import { html, useEffect, useRef } from "../lib.js";

/** @param {{title: string, onClose: () => void, children?: any}} props */
export function Dialog({ title, onClose, children }) {
  const box = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    const shown = box.current;
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    shown?.showModal();
    return () => {
      shown?.close();
      setTimeout(() => {
        if (document.activeElement && document.activeElement !== document.body) return;
        before?.focus();
        if (document.activeElement === document.body) document.getElementById("main")?.focus();
      });
    };
  }, []);
  return html`
    <dialog ref=${box} aria-labelledby="dialog-title" onClose=${onClose} onCancel=${onClose}>
      <h2 id="dialog-title">${title}</h2>
      ${children}
    </dialog>
  `;
}
