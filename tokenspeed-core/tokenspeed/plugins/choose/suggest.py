# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Which wheel to suggest when nothing installed provides what is needed. Data for messages only."""

from __future__ import annotations

DEFAULT_PLATFORM_WHEEL = "tokenspeed-cpu"

PLATFORM_WHEELS = {"cpu": "tokenspeed-cpu", "nvidia": "tokenspeed-nvidia"}

DEVICE_WHEELS = {"cuda": "tokenspeed-nvidia", "gpu": "tokenspeed-nvidia"}
"""By what people call the device of a platform."""

ARCHITECTURE_WHEELS = {
    "LlamaForCausalLM": "tokenspeed-models",
    "Qwen2ForCausalLM": "tokenspeed-models",
    "Qwen3ForCausalLM": "tokenspeed-models",
}
