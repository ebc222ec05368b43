#!/usr/bin/env python3
"""Writes generation.json, what transformers generates from the goldens where generation_config.json
decides: generation.py > generation.json (pip install torch transformers)"""
import json
import logging
import pathlib
import shutil
import sys
import tempfile

import torch
import transformers

GOLDENS = pathlib.Path(__file__).parent / "goldens"
DECODERS, PAIRS = ("gpt2", "llama"), ("bart", "t5")
PROMPTS = [[12, 38, 9, 38, 9, 12], [4, 8, 15], [50, 51, 52, 50]]
EOS = "eos"  # stands for two tokens that greedy generation gives early

# Every key alone, then several as published checkpoints have them.
CASES = [
    {},
    {"eos_token_id": EOS},
    {"repetition_penalty": 1.4},
    {"encoder_repetition_penalty": 1.7},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3},
    {"encoder_no_repeat_ngram_size": 1},
    {"encoder_no_repeat_ngram_size": 2},
    {"bad_words_ids": "greedy"},
    {"suppress_tokens": "greedy"},
    {"begin_suppress_tokens": "greedy"},
    {"begin_suppress_tokens": "second", "forced_bos_token_id": 17},
    {"eos_token_id": EOS, "min_new_tokens": 7},
    {"eos_token_id": EOS, "min_length": 9},
    {"eos_token_id": EOS, "min_length": 6, "min_new_tokens": 8, "max_length": 13},
    {"max_new_tokens": None, "max_length": 9, "forced_eos_token_id": [60, 7]},
    {"forced_bos_token_id": 17, "forced_eos_token_id": 7, "suppress_tokens": [3, 5]},
    {"eos_token_id": EOS, "exponential_decay_length_penalty": [2, 1.3]},
    {"eos_token_id": EOS, "renormalize_logits": True, "bad_words_ids": "greedy"},
    {"do_sample": True, "top_k": 1, "temperature": 0.7},  # nothing is left to chance
    {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "encoder_repetition_penalty": 1.1,
     "encoder_no_repeat_ngram_size": 3, "bad_words_ids": "greedy", "suppress_tokens": [2, 3],
     "begin_suppress_tokens": [31], "eos_token_id": EOS, "min_new_tokens": 4,
     "exponential_decay_length_penalty": [5, 1.1], "forced_eos_token_id": 9},
]
BEAMS = [
    {"num_beams": 3},
    {"num_beams": 3, "eos_token_id": EOS, "early_stopping": True},
    {"num_beams": 3, "eos_token_id": EOS, "early_stopping": False, "length_penalty": 2.0},
    {"num_beams": 3, "eos_token_id": EOS, "early_stopping": "never", "length_penalty": 2.0},
    {"num_beams": 3, "eos_token_id": EOS, "early_stopping": "never", "length_penalty": -1.0},
    {"num_beams": 2, "eos_token_id": EOS, "length_penalty": 0.0},
    {"num_beams": 4, "eos_token_id": EOS, "renormalize_logits": True, "forced_eos_token_id": 7,
     "bad_words_ids": "greedy"},
    # Where these make a difference.
    {"num_beams": 2, "eos_token_id": [15, 45], "early_stopping": "never"},
    {"num_beams": 2, "eos_token_id": [66, 70], "early_stopping": "never", "length_penalty": 2.0},
    {"num_beams": 4, "eos_token_id": [45, 59], "renormalize_logits": True, "length_penalty": 2.0,
     "bad_words_ids": [[91], [50], [12], [34]], "repetition_penalty": 1.5},
    # BART's summaries of CNN; a translator of OPUS.
    {"num_beams": 4, "early_stopping": True, "length_penalty": 2.0, "max_new_tokens": None,
     "max_length": 14, "min_length": 6, "no_repeat_ngram_size": 3, "forced_bos_token_id": 0,
     "forced_eos_token_id": 2, "eos_token_id": EOS},
    {"num_beams": 6, "max_new_tokens": None, "max_length": 15, "renormalize_logits": True,
     "bad_words_ids": [[0]], "forced_eos_token_id": 1, "eos_token_id": EOS},
]


def load(name, generation, folder):
    for file in ("config.json", "model.safetensors"):
        shutil.copy(GOLDENS / name / file, folder)
    path = pathlib.Path(folder) / "generation_config.json"
    path.write_text(json.dumps(generation))
    return transformers.AutoModelForCausalLM.from_pretrained(folder) if name in DECODERS else \
        transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)


def generate(name, generation):
    with tempfile.TemporaryDirectory() as folder:
        model = load(name, generation, folder).eval()
    ends = generation.get("eos_token_id") or []
    replies = []
    for prompt in PROMPTS:
        # The golden's own padding token, which occurs in no prompt: transformers derives a mask.
        ids = torch.tensor([prompt])
        tokens = model.generate(ids, attention_mask=torch.ones_like(ids))[0].tolist()
        tokens = tokens[1 if name in PAIRS else len(prompt):]
        for at, token in enumerate(tokens):
            if token in ends:
                tokens = tokens[:at + 1]
                break
        replies.append(tokens)
    return replies


def main():
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    cases = []
    for name in DECODERS + PAIRS:
        config = json.loads((GOLDENS / name / "config.json").read_text())
        base = {"max_new_tokens": 12, "pad_token_id": 0, "eos_token_id": None}
        if name in PAIRS:
            base["decoder_start_token_id"] = config["decoder_start_token_id"]
        free = generate(name, base)
        forced = generate(name, {**base, "forced_bos_token_id": 17})
        ends = sorted({free[0][4], free[1][6]})
        with_beams = [{"num_beams": 3, **case} for case in CASES if "do_sample" not in case]
        for case in CASES + with_beams + BEAMS:
            generation = {**base, **case}
            # Of beams that are as good as each other torch takes any.
            if "num_beams" in case and isinstance(case.get("forced_eos_token_id"), list):
                generation["forced_eos_token_id"] = 7
            if generation.get("eos_token_id") == EOS:
                generation["eos_token_id"] = ends
            if generation.get("bad_words_ids") == "greedy":
                generation["bad_words_ids"] = [[free[0][0]], free[1][1:3], free[2][2:5], [ends[0]]]
            for key in ("suppress_tokens", "begin_suppress_tokens"):
                if generation.get(key) == "greedy":
                    generation[key] = sorted({reply[0] for reply in free} | {free[1][3]})
                if generation.get(key) == "second":  # after the token that is forced
                    generation[key] = sorted({reply[1] for reply in forced})
            generation = {k: v for k, v in generation.items() if v is not None or k == "eos_token_id"}
            cases.append({"model": name, "generation": generation,
                          "tokens": generate(name, generation)})
            print(name, case, cases[-1]["tokens"], file=sys.stderr)
    print(f'{{"transformers": "{transformers.__version__}", "prompts": {json.dumps(PROMPTS)}, "cases": [')
    print(",\n".join(json.dumps(case) for case in cases))
    print("]}")


main()
