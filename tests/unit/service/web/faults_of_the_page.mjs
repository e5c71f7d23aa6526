// Finds the fields that messages are about, and words for a form. The messages come as JSON on standard input.
import { fieldFault } from "../../../../gpuqueue/web/form-faults.js";

let input = "";
for await (const each of process.stdin) input += each;
console.log(JSON.stringify(JSON.parse(input).map(fieldFault)));
