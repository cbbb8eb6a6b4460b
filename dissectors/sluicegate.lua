-- Wireshark and tshark dissector for Sluicegate's capability header: IP protocol 253 and UDP port 7253.
-- The format is documented in docs/src/reference/capability-header.md.
--
--   tshark -X lua_script:dissectors/sluicegate.lua -V -r capture.pcap

local IP_PROTOCOL = 253
local UDP_PORT = 7253
local CAPABILITIES_MAX = 8
local CAPABILITY_ONLY = 59

local REQUEST, CAPABILITIES, NONCE, RENEWAL = 0, 1, 2, 3
local KINDS = {
    [REQUEST] = "request",
    [CAPABILITIES] = "regular with capabilities",
    [NONCE] = "regular, nonce only",
    [RENEWAL] = "renewal",
}
local ALGORITHMS = { [1] = "SipHash-2-4", [2] = "AES-128" }
local RETURNS = { [1] = "demotion notice", [2] = "list", [3] = "demotion notice and list" }
local UPPER = {
    [1] = "ICMP", [6] = "TCP", [17] = "UDP", [58] = "ICMPv6", [59] = "none: capability only", [132] = "SCTP",
}
-- What may not follow: another capability header, and IPv6 extension headers.
local FORBIDDEN_UPPER = { [0] = true, [43] = true, [44] = true, [51] = true, [60] = true, [253] = true }

local sluicegate = Proto("sluicegate", "Sluicegate capability header")

local field = {
    version = ProtoField.uint8("sluicegate.version", "Version, algorithm", base.DEC, ALGORITHMS, 0xf0),
    demoted = ProtoField.bool("sluicegate.demoted", "Demoted", 8, nil, 0x08),
    returns = ProtoField.bool("sluicegate.return", "Return information follows", 8, nil, 0x04),
    kind = ProtoField.uint8("sluicegate.kind", "Kind", base.DEC, KINDS, 0x03),
    upper = ProtoField.uint8("sluicegate.upper", "Upper protocol", base.DEC, UPPER),
    client_id = ProtoField.uint32("sluicegate.client_id", "Client id", base.HEX),
    nonce = ProtoField.bytes("sluicegate.nonce", "Flow nonce"),
    num = ProtoField.uint8("sluicegate.num", "Number", base.DEC),
    ptr = ProtoField.uint8("sluicegate.ptr", "Pointer", base.DEC),
    n_kb = ProtoField.uint16("sluicegate.n_kb", "N, KB", base.DEC, nil, 0xffc0),
    t_s = ProtoField.uint16("sluicegate.t_s", "T, s", base.DEC, nil, 0x003f),
    path_id = ProtoField.uint16("sluicegate.path_id", "Path identifier", base.HEX),
    capability = ProtoField.bytes("sluicegate.capability", "Capability"),
    timestamp = ProtoField.uint8("sluicegate.capability.timestamp", "Timestamp, s mod 256", base.DEC),
    hash = ProtoField.bytes("sluicegate.capability.hash", "Hash"),
    return_kind = ProtoField.uint8("sluicegate.return.kind", "Return information", base.DEC, RETURNS),
    return_num = ProtoField.uint8("sluicegate.return.num", "Capabilities returned", base.DEC),
}
sluicegate.fields = field

local malformed = ProtoExpert.new(
    "sluicegate.malformed", "Malformed capability header", expert.group.MALFORMED, expert.severity.ERROR)
local demotion = ProtoExpert.new(
    "sluicegate.demotion", "A router found no valid capability", expert.group.SECURITY, expert.severity.NOTE)
sluicegate.experts = { malformed, demotion }

-- The layout of a valid header, or nil and what is wrong with it. Decides exactly as routers do.
local function layout_of(tvb)
    local function byte(at) return tvb(at, 1):uint() end
    if tvb:len() < 12 then return nil, "cut short: 12 bytes at least" end
    local first = byte(0)
    local layout = { kind = bit32.band(first, 3), returns = bit32.band(first, 4) ~= 0 }
    if ALGORITHMS[bit32.rshift(first, 4)] == nil then return nil, "unknown version" end
    if FORBIDDEN_UPPER[byte(1)] then return nil, "this upper protocol cannot follow" end

    if layout.kind == NONCE then
        layout.return_at = 12
    else
        local count_at = layout.kind == REQUEST and 2 or 12
        if tvb:len() < count_at + 4 then return nil, "cut short before the list" end
        layout.num, layout.ptr = byte(count_at), byte(count_at + 1)
        if layout.num > CAPABILITIES_MAX then return nil, "more than 8 in the list" end
        if layout.ptr > layout.num then return nil, "the pointer is behind the list" end
        if layout.kind == REQUEST then
            layout.return_at = 12 + 10 * layout.num
        else
            if layout.num == 0 then return nil, "no capability" end
            local limits = tvb(14, 2):uint()
            if bit32.rshift(limits, 6) == 0 or bit32.band(limits, 63) == 0 then return nil, "N or T is zero" end
            layout.return_at = 16 + 8 * layout.num
        end
    end

    layout.len = layout.return_at
    if layout.returns then
        if tvb:len() < layout.return_at + 1 then return nil, "cut short before the return information" end
        layout.return_kind = byte(layout.return_at)
        if RETURNS[layout.return_kind] == nil then return nil, "unknown return information" end
        layout.len = layout.return_at + 1
        if layout.return_kind >= 2 then
            if tvb:len() < layout.return_at + 4 then return nil, "cut short in the return information" end
            layout.return_num = byte(layout.return_at + 1)
            local limits = tvb(layout.return_at + 2, 2):uint()
            local zero = bit32.rshift(limits, 6) == 0 or bit32.band(limits, 63) == 0
            if layout.return_num > CAPABILITIES_MAX then return nil, "more than 8 returned" end
            if zero and not (layout.return_num == 0 and limits == 0) then return nil, "returned N or T is zero" end
            layout.len = layout.return_at + 4 + 8 * layout.return_num
        end
    end
    if tvb:len() < layout.len then return nil, "cut short in the list" end
    return layout
end

local function add_capability(tree, range, label)
    local item = tree:add(field.capability, range)
    item:set_text(label .. ": " .. tostring(range:bytes()):lower())
    item:add(field.timestamp, range(0, 1))
    item:add(field.hash, range(1, 7))
end

local function add_limits(tree, range)
    tree:add(field.n_kb, range)
    tree:add(field.t_s, range)
end

local function add_request(tree, tvb, layout)
    tree:add(field.num, tvb(2, 1)):append_text(" slots")
    tree:add(field.ptr, tvb(3, 1)):append_text(" filled")
    tree:add(field.client_id, tvb(8, 4))
    for index = 0, layout.num - 1 do
        local slot = tvb(12 + 10 * index, 10)
        local item = tree:add(slot, ("Slot %d%s"):format(index, index < layout.ptr and "" or ", blank"))
        item:add(field.path_id, slot(0, 2))
        add_capability(item, slot(2, 8), "Pre-capability")
    end
end

local function add_regular(tree, tvb, layout)
    tree:add(field.nonce, tvb(2, 6))
    tree:add(field.client_id, tvb(8, 4))
    if layout.kind == NONCE then return end
    tree:add(field.num, tvb(12, 1)):append_text(" capabilities")
    tree:add(field.ptr, tvb(13, 1)):append_text(" checked")
    add_limits(tree, tvb(14, 2))
    for index = 0, layout.num - 1 do
        local fresh = layout.kind == RENEWAL and index < layout.ptr
        local label = ("%s %d"):format(fresh and "Pre-capability" or "Capability", index)
        add_capability(tree, tvb(16 + 8 * index, 8), label)
    end
end

local function add_return(tree, tvb, layout)
    local item = tree:add(tvb(layout.return_at, layout.len - layout.return_at), "Return information")
    item:add(field.return_kind, tvb(layout.return_at, 1))
    if layout.return_num == nil then return end
    local num = item:add(field.return_num, tvb(layout.return_at + 1, 1))
    if layout.return_num == 0 then num:append_text(": refused") end
    add_limits(item, tvb(layout.return_at + 2, 2))
    for index = 0, layout.return_num - 1 do
        add_capability(item, tvb(layout.return_at + 4 + 8 * index, 8), ("Capability %d"):format(index))
    end
end

local function summary_of(layout, demoted)
    local text = KINDS[layout.kind]
    if layout.num ~= nil then text = ("%s %d/%d"):format(text, layout.ptr, layout.num) end
    if demoted then text = text .. ", demoted" end
    if layout.return_num == 0 then
        text = text .. ", refuses"
    elseif layout.return_num ~= nil then
        text = ("%s, returns %d"):format(text, layout.return_num)
    end
    if layout.return_kind == 1 or layout.return_kind == 3 then text = text .. ", notifies of demotion" end
    return text
end

local function hand_on(tvb, upper, pinfo, root)
    local rest = tvb:tvb()
    if rest:len() == 0 or upper == CAPABILITY_ONLY then return end
    if DissectorTable.get("ip.proto"):try(upper, rest, pinfo, root) == 0 then
        Dissector.get("data"):call(rest, pinfo, root)
    end
end

function sluicegate.dissector(tvb, pinfo, root)
    local layout, wrong = layout_of(tvb)
    -- From port 7253 to another port it may be anybody's datagram.
    local only_from = pinfo.port_type == 3 and pinfo.src_port == UDP_PORT and pinfo.dst_port ~= UDP_PORT
    if layout == nil and only_from then return 0 end

    pinfo.cols.protocol = "Sluicegate"
    if layout == nil then
        local tree = root:add(sluicegate, tvb())
        tree:append_text(": malformed, " .. wrong)
        tree:add_proto_expert_info(malformed, "Malformed capability header: " .. wrong)
        pinfo.cols.info = "malformed capability header: " .. wrong
        return tvb:len()
    end

    local demoted = bit32.band(tvb(0, 1):uint(), 8) ~= 0
    local summary = summary_of(layout, demoted)
    local tree = root:add(sluicegate, tvb(0, layout.len))
    tree:append_text(": " .. summary)
    tree:add(field.version, tvb(0, 1))
    tree:add(field.demoted, tvb(0, 1))
    if demoted then tree:add_proto_expert_info(demotion) end
    tree:add(field.returns, tvb(0, 1))
    tree:add(field.kind, tvb(0, 1))
    tree:add(field.upper, tvb(1, 1))
    if layout.kind == REQUEST then add_request(tree, tvb, layout) else add_regular(tree, tvb, layout) end
    if layout.returns then add_return(tree, tvb, layout) end

    pinfo.cols.info = ""
    if layout.len < tvb:len() then hand_on(tvb(layout.len), tvb(1, 1):uint(), pinfo, root) end
    pinfo.cols.info:prepend("[" .. summary .. "] ")
    return tvb:len()
end

DissectorTable.get("ip.proto"):add(IP_PROTOCOL, sluicegate)
DissectorTable.get("udp.port"):add(UDP_PORT, sluicegate)
