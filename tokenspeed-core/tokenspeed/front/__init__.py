# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""The process between gateway and engine: gRPC service, validation, text, admin port."""
