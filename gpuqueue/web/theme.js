// Sets the chosen theme before the first paint. Without a choice, the system's counts.
(() => {
  try {
    const theme = localStorage.getItem("gpuqueue.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // A browser may forbid storage: then the system's theme counts.
  }
})();
