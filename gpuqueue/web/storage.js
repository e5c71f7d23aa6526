// What this browser remembers: the theme, whether single keys do something, and the page's key of the session.

/** @param {string} name @returns {string | null} */
export function remembered(name) {
  try {
    return localStorage.getItem(`gpuqueue.${name}`);
  } catch {
    return null;
  }
}

/** @param {string} name @param {string | null} value */
export function remember(name, value) {
  try {
    if (value === null) localStorage.removeItem(`gpuqueue.${name}`);
    else localStorage.setItem(`gpuqueue.${name}`, value);
  } catch {
    // A browser may forbid storage: then the choice lasts as long as the page.
  }
}
