// Sends a script to the service as a snapshot of one file: its manifest first, then its content if that is new.
import { ApiError, change } from "./api.js";
import { size } from "./words.js";

/** Bytes in one request, which has at most 4 MiB, and base64 takes a third more. */
const PART_BYTES = 2 * 2 ** 20;
/** How often the service is asked what is missing. Between two answers it may remove old files. */
const TRIES = 3;

/** @param {ArrayBuffer} digest */
const hex = (digest) => [...new Uint8Array(digest)].map((each) => each.toString(16).padStart(2, "0")).join("");

/** @param {Blob} blob @returns {Promise<string>} */
function base64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result).replace(/^[^,]*,?/, ""));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

/** The text that names the file. A script that is not run by Python is executable. @param {string} name @param {string} sha256 @param {number} bytes */
export const manifestOf = (name, sha256, bytes) => `gpuqueue-snapshot 1\n${name.endsWith(".py") ? "file" : "exec"}\t${sha256}\t${bytes}\t${name}\n`;

/** Why a file cannot be a script, null if it can. @param {File} file @param {number} mostBytes */
export async function faultOf(file, mostBytes) {
  if (file.size > mostBytes) return `${file.name} has ${size(file.size)}, and a file may have ${size(mostBytes)}: data does not travel as a script.`;
  if (file.name.endsWith(".py")) return null;
  const first = await file.slice(0, 2).text();
  return first === "#!" ? null : `${file.name} is no .py file and does not begin with #!: add a line such as #!/bin/sh.`;
}

/** Send the content. @param {File} file @param {string} sha256 */
async function sendContent(file, sha256) {
  let offset = 0;
  do {
    const content = await base64(file.slice(offset, offset + PART_BYTES));
    await change("POST", "/snapshots/contents", { parts: [{ sha256, size_bytes: file.size, content, offset_bytes: offset }] });
    offset += PART_BYTES;
  } while (offset < file.size);
}

/** Send a script, and return the address of its snapshot. @param {File} file @returns {Promise<string>} */
export async function sendScript(file) {
  let content;
  try {
    content = await file.arrayBuffer();
  } catch {
    throw new ApiError(0, `${file.name} cannot be read any more: choose it again.`);
  }
  const sha256 = hex(await crypto.subtle.digest("SHA-256", content));
  for (let turn = 0; turn < TRIES; turn += 1) {
    const state = await change("POST", "/snapshots", { manifest: manifestOf(file.name, sha256, file.size) });
    if (!state.missing.length) return state.address;
    await sendContent(file, sha256);
  }
  throw new ApiError(0, "The service does not keep the script: see its log.");
}
