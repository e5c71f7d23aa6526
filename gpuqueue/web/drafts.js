// What people have typed and not sent: it stays while they look elsewhere, over a sign-in, and over a reload. It belongs
// to an account, and a sign-out removes it.
import { useCallback, useState } from "./lib.js";

/** Files of forms. A browser keeps no file over a reload. @type {Map<string, File | null>} */
const FILES = new Map();
const PREFIX = "gpuqueue.draft.";
let owner = "";

/** Keep drafts for this account from now on. @param {string} account */
export function keepDraftsOf(account) {
  owner = account;
}

/** Forget all drafts. */
export function forgetDrafts() {
  FILES.clear();
  try {
    for (const name of Object.keys(sessionStorage)) if (name.startsWith(PREFIX)) sessionStorage.removeItem(name);
  } catch {
    // A browser may forbid storage.
  }
}

/** @param {string} name */
const keyOf = (name) => `${PREFIX}${owner}.${name}`;

/** What was typed under a name, null if nothing was. @param {string} name @returns {any} */
export function draft(name) {
  try {
    return JSON.parse(sessionStorage.getItem(keyOf(name)) ?? "null");
  } catch {
    return null;
  }
}

/** Keep what is typed under a name; null forgets it. @param {string} name @param {any} value */
export function keepDraft(name, value) {
  try {
    if (value === null) sessionStorage.removeItem(keyOf(name));
    else sessionStorage.setItem(keyOf(name), JSON.stringify(value));
  } catch {
    // Without storage a draft lasts as long as its form.
  }
}

/**
 * The file of a form, kept until the page is loaded anew.
 * @param {string} name
 * @returns {[File | null, (file: File | null) => void]}
 */
export function useFile(name) {
  const key = keyOf(name);
  const [file, setFile] = useState(FILES.get(key) ?? null);
  const set = useCallback((/** @type {File | null} */ next) => {
    FILES.set(key, next);
    setFile(next);
  }, [key]);
  return [file, set];
}
