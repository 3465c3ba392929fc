import json

from hypothesis import given, settings
from hypothesis import strategies as st
from rest_client import ask as post
from rest_client import error

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("b64"), inner),
    max_leaves=8,
)
TENSORS = JSON | st.dictionaries(st.sampled_from(["x", "text", "text_pair"]), JSON)
ROWS = {"instances": TENSORS | st.lists(TENSORS, min_size=1), "inputs": TENSORS}
SIGNATURES = st.sampled_from(["lengths", "pairs", "no", "sensors"])
DOCUMENTS = st.fixed_dictionaries({"signature_name": SIGNATURES | JSON}, optional=ROWS)
WHOLE = DOCUMENTS.map(json.dumps).map(str.encode)
CUT = st.builds(lambda body, size: body[:size], WHOLE, st.integers(0, 30))


@settings(max_examples=80)
@given(WHOLE | CUT | st.binary(max_size=64))
def test_any_body_is_answered_or_refused(client, body):
    answer = post(client, body)
    if answer.status_code != 200:
        assert error(answer, 400).encode()
