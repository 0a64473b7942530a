"""What else the genuine Python client knows: starting instances, finding them and their versions, sending messages.

Arguments: the package (``camunda`` or ``operaton``) and the base URL. One call a line on standard input, as JSON:
``{call, arguments}``.
"""

import importlib
import json
import sys

package, base_url = sys.argv[1:]
module = importlib.import_module(f"{package}.process_definition.process_definition_client")
client = module.ProcessDefinitionClient(base_url)  # an EngineClient too

for line in sys.stdin:
    command = json.loads(line)
    try:
        result = getattr(client, command["call"])(**command["arguments"])
    except Exception as error:
        print(json.dumps({"event": "error", "message": str(error)}), flush=True)
    else:
        print(json.dumps({"event": "result", "result": result}), flush=True)
