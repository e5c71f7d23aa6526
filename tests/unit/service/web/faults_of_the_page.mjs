// Finds the fields that messages are about, and words for a form. The messages come as JSON on standard input.
import { codeOfRetry } from "../../../../gpuqueue/web/again-words.js";
import { fieldFault } from "../../../../gpuqueue/web/form-faults.js";

let input = "";
for await (const each of process.stdin) input += each;
const { messages, codes } = JSON.parse(input);
console.log(JSON.stringify({ faults: messages.map(fieldFault), codes: codes.map(codeOfRetry) }));
