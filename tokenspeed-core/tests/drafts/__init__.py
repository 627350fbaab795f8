# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
