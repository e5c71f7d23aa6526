// What a job that runs again runs.

/** What is known of the code of a job. @typedef {{cwd: string, snapshot: string | null}} Code */

/** Whether the browser sent the script: the job has no directory of its own. @param {Code} spec */
const isUploaded = (spec) => spec.snapshot !== null && spec.cwd === "/";

/** Which code the new job has: the copy that is kept, or the files as they are now. @param {Code} spec */
export function codeOfRetry(spec) {
  if (spec.snapshot === null) return `It runs the files in ${spec.cwd} as they are when it starts, so what you have changed there counts.`;
  const newer = isUploaded(spec) ? "submit it as a new script" : "type gpuqueue submit in its directory";
  return `It runs the copy of the code that was made at the first submission. What was changed since then does not count: to run changed code, ${newer}.`;
}
