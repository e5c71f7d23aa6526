// Finds the fields that messages are about. The messages come as JSON on standard input.
import { fieldOf } from "../../../../gpuqueue/web/form-faults.js";

let input = "";
for await (const each of process.stdin) input += each;
console.log(JSON.stringify(JSON.parse(input).map(fieldOf)));
